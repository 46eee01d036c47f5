"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), fused, without torch's compiler.

torch wraps five methods of its optimisers so that a compiler leaves them out, and each wrapper imports the whole
compiler at its first call: about 1 s in every process, more than a small trial takes. Nothing is compiled here, so the
plain methods below the wrappers serve; a test holds them to torch's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """torch's AdamW, step for step."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # torch's also takes a closure
        """One update from the gradients that the parameters hold."""
        _step(self)

    def dump(self, kept: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """State as flat tensors `<parameter>.<name>`, each as `kept` gives it.

        In one order on all ranks, which gather together: a loaded state has that of its file, which is none.
        """
        state: dict[int, dict[str, Tensor]] = self.state_dict()["state"]
        return {
            f"{number}.{name}": kept(value)
            for number, values in sorted(state.items())
            for name, value in sorted(values.items())
        }

    def load(self, tensors: dict[str, Tensor], scattered: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Take whole tensors as `dump` names them; `scattered(tensor, parameter)` is what this worker holds of one."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            like = parameters[int(number)]
            mine = scattered(value, like) if value.shape == like.shape else value  # a count of steps is on every rank
            state.setdefault(int(number), {})[name] = mine
        self.load_state_dict({"state": state, "param_groups": self.state_dict()["param_groups"]})
