"""Optimisers of torch by name, without torch's compiler, and the state of all optimisers of a training.

torch wraps five methods of its optimisers so that a compiler leaves them out, and each wrapper imports the whole
compiler at its first call: about 1 s in every process, more than a small trial takes. Nothing is compiled here, so the
plain methods below the wrappers serve; a test holds them to torch's own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sp500.config import RunConfig, TrainConfig, optimizers
from sp500.errors import ConfigError

CLASSES: Mapping[str, type[Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
}
MAIN = "main"
"""The optimiser of a task that has one."""


@cache
def lean(name: str) -> type[Optimizer]:
    """Return an optimiser of torch that imports no compiler; step for step the same."""
    kind = CLASSES[name]
    step = inspect.unwrap(kind.step)

    @torch.no_grad()
    def plain_step(self: Optimizer, closure: None = None) -> None:
        """Update the parameters once, from the gradients that they hold."""
        del closure
        if name == "adafactor" and any(hasattr(weight, "full_tensor") for weight in _list_parameters(self)):
            _step_whole(self, step)
        else:
            step(self)

    methods = {
        "add_param_group": inspect.unwrap(torch.optim.Optimizer.add_param_group),
        "state_dict": inspect.unwrap(torch.optim.Optimizer.state_dict),
        "load_state_dict": inspect.unwrap(torch.optim.Optimizer.load_state_dict),
        "zero_grad": inspect.unwrap(torch.optim.Optimizer.zero_grad),
    }
    return type(kind.__name__, (kind,), {**methods, "step": plain_step})


def _step_whole(optimizer: Optimizer, step: Callable[[Optimizer], object]) -> None:
    """Step on whole tensors, one after another: Adafactor's means over rows and columns need them.

    torch's own step fails on parts, which FSDP makes. Its state is small, and each rank holds all of it.
    """
    from torch.distributed.tensor import distribute_tensor

    for group in optimizer.param_groups:
        parts = group["params"]
        for part in parts:
            if part.grad is None:
                continue
            whole = part.full_tensor()
            whole.grad = part.grad.full_tensor()
            values = optimizer.state.pop(part, {}).items()  # read from a checkpoint, some are parts
            state = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in values}
            group["params"], optimizer.state[whole] = [whole], state
            step_of = copy(optimizer)
            step_of.param_groups = [group]
            step(step_of)
            optimizer.state[part] = optimizer.state.pop(whole)
            part.copy_(distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None))
        group["params"] = parts


def build(model: nn.Module, config: RunConfig) -> Optimizer:
    """Return the optimiser that the settings name, for the trained parameters of a model. Raises ConfigError."""
    train = config.train
    options: dict[str, Any] = dict(train.optimizer_options)
    if train.optimizer == "adamw":
        options["fused"] = True
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    make: Any = lean(train.optimizer)
    try:
        optimizer: Optimizer = make(groups(parameters, train), lr=config.lr, weight_decay=train.weight_decay, **options)
    except ValueError as error:
        raise ConfigError(f"train.optimizer {train.optimizer}: {error}") from None
    return optimizer


def groups(parameters: list[nn.Parameter], train: TrainConfig) -> list[dict[str, object]]:
    """Return parameters by their weight decay, in the form of torch's optimisers."""
    if train.decay == "all":
        return [{"params": parameters}]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]


class Optimizers:
    """The optimisers of a training by name. `own`: a task's own ones, whose groups may change in a step."""

    def __init__(self, named: Mapping[str, Any], *, own: bool) -> None:
        for name, optimizer in named.items():
            if not isinstance(optimizer, Optimizer):
                kind = type(optimizer).__name__
                raise ConfigError(f"the task's optimiser {name!r} is a {kind}, expected a torch.optim.Optimizer")
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ConfigError(f"the task's optimiser {name!r} is LBFGS: {optimizers.REFUSED['lbfgs']}")
        self.named, self._own = dict(named), own
        self._rates = {name: [float(group["lr"]) for group in of.param_groups] for name, of in named.items()}

    def __getitem__(self, name: str) -> Optimizer:
        optimizer: Optimizer = self.named[name]
        return optimizer

    def scale_rates(self, factor: float, name: str | None = None) -> None:
        """Set the learning rates of one optimiser, or of all, to this factor of those that they were made with."""
        for each in self.named if name is None else (name,):
            for group, rate in zip(self.named[each].param_groups, self._rates[each], strict=True):
                group["lr"] = rate * factor

    def set_momentum(self, momentum: float, name: str | None = None) -> None:
        """Set the momentum, or the first of `betas`, of optimisers that have one."""
        for each in self.named if name is None else (name,):
            for group in self.named[each].param_groups:
                if "betas" in group:
                    group["betas"] = (momentum, *group["betas"][1:])
                elif "momentum" in group:
                    group["momentum"] = momentum

    def dump(self) -> dict[str, Tensor]:
        """Return the tensors of the state as `<parameter>.<name>`, behind `<optimiser>/` if there are several.

        The order is the same on all ranks, which gather together. A loaded state has its file's order, which varies.
        """
        return {key: value for key, value in self._walk() if isinstance(value, Tensor)}

    def dump_plain(self) -> str:
        """Return numbers and text of the state as JSON; empty for optimisers that the settings describe.

        Raises ConfigError for what can be neither.
        """
        if not self._own:
            return ""
        for optimizer in self.named.values():
            held = optimizer.state_dict()
            others = [*held.keys() - {"state", "param_groups"}, *(key for key in held["state"] if type(key) is not int)]
            if others:
                raise ConfigError(
                    f"the optimiser's state_dict has {others[0]!r}, which belongs to no parameter and no group; keep it"
                    " in one of param_groups"
                )
        plain = {key: value for key, value in self._walk() if not isinstance(value, Tensor)}
        for key, value in plain.items():
            items = value if isinstance(value, list | tuple) else [value]
            if not all(item is None or isinstance(item, bool | int | float | str) for item in items):
                raise ConfigError(
                    f"the optimiser's state has {key.rpartition('.')[2]}, a {type(value).__name__}: a checkpoint keeps "
                    "tensors, numbers and text; keep it as one of these, or outside of state and param_groups"
                )
        return json.dumps(plain)

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by the beginning of their names in `dump`: a worker holds the same part of both."""
        return {
            f"{prefix}{number}": parameter
            for prefix, optimizer in self._prefixed()
            for number, parameter in enumerate(_list_parameters(optimizer))
        }

    def load(self, tensors: Mapping[str, Tensor], plain: str = "") -> None:
        """Load what `dump` and `dump_plain` return."""
        parameters, values = self.parameters(), {**(json.loads(plain) if plain else {}), **tensors}
        for prefix, optimizer in self._prefixed():
            state: dict[int, dict[str, object]] = {}
            kept = optimizer.state_dict()
            for key, value in values.items():
                if key[: key.rfind("/") + 1] != prefix:
                    continue
                number, name = key[len(prefix) :].split(".", 1)
                if number.startswith("group"):
                    group = kept["param_groups"][int(number.removeprefix("group"))]
                    group[name] = tuple(value) if isinstance(group[name], tuple) else value
                else:
                    state.setdefault(int(number), {})[name] = _lay_out(value, parameters[f"{prefix}{number}"])
            optimizer.load_state_dict({**kept, "state": state})
            _keep_types(optimizer, state)

    def _prefixed(self) -> Iterator[tuple[str, Optimizer]]:
        """Yield each optimiser with the beginning of its keys: none if it is the only one, as in earlier runs."""
        for name, optimizer in self.named.items():
            yield "" if len(self.named) == 1 else f"{name}/", optimizer

    def _walk(self) -> Iterator[tuple[str, Any]]:
        for prefix, optimizer in self._prefixed():
            held = optimizer.state_dict()
            for number, values in sorted(held["state"].items()):
                for name, value in sorted(values.items()):
                    yield f"{prefix}{number}.{name}", value
            for number, group in enumerate(held["param_groups"] if self._own else ()):
                for name, value in sorted(group.items()):
                    if name != "params":
                        yield f"{prefix}group{number}.{name}", value


def _list_parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _lay_out(value: object, like: Tensor) -> object:
    """Return a tensor with the strides of its parameter.

    The fused step goes through the memory of parameter and moments at once, in the order of neither's shape.
    """
    if not isinstance(value, Tensor) or value.shape != like.shape or value.stride() == like.stride():
        return value
    return torch.empty_like(like, dtype=value.dtype).copy_(value)


def _keep_types(optimizer: Optimizer, state: Mapping[int, Mapping[str, object]]) -> None:
    """Give single numbers their own type again: torch gives them that of the parameter, and so other bits."""
    for number, parameter in enumerate(_list_parameters(optimizer)):
        for name, value in state.get(number, {}).items():
            held = optimizer.state[parameter].get(name)
            if isinstance(value, Tensor) and isinstance(held, Tensor) and held.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(held.device)
