"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), fused, without torch's compiler.

torch wraps five methods of its optimisers so that a compiler leaves them out, and each wrapper imports the whole
compiler at its first call: about 1 s in every process, more than a small trial takes. Nothing is compiled here, so the
plain methods below the wrappers serve; a test holds them to torch's own.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """torch's AdamW, step for step."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # torch's also takes a closure
        """Update the parameters once, from the gradients that they hold."""
        _step(self)

    def dump(self) -> dict[str, Tensor]:
        """Return the state as flat tensors `<parameter>.<name>`.

        The order is the same on all ranks, which gather together. A loaded state has its file's order, which varies.
        """
        state: dict[int, dict[str, Tensor]] = self.state_dict()["state"]
        return {
            f"{number}.{name}": value
            for number, values in sorted(state.items())
            for name, value in sorted(values.items())
        }

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameter of each moment by its name in `dump`: a worker holds the same part of both.

        It is known before the first step.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {f"{number}.{name}": value for number, value in enumerate(parameters) for name in MOMENTS}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `dump` returns."""
        state: dict[int, dict[str, Tensor]] = {}
        parameters = self.parameters()
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            like = parameters.get(key, value)
            # The fused step goes through the memory of parameter and moments at once, in the order of neither's shape.
            same = value.stride() == like.stride()
            state.setdefault(int(number), {})[name] = value if same else torch.empty_like(like).copy_(value)
        self.load_state_dict({"state": state, "param_groups": self.state_dict()["param_groups"]})
