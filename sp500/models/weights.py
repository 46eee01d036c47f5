"""The weights that training changes: what a checkpoint keeps of a model, without the part that is stored elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FILLS = frozenset(
    {
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.kaiming_uniform_,
        nn.init.xavier_uniform_,
        Tensor.uniform_,
        Tensor.normal_,
    }
)


@runtime_checkable
class OnBase(Protocol):
    """A model that adds to another one, which is not trained and has a folder of its own."""

    def base_names(self) -> frozenset[str]:
        """Return the names, in the state, of what the folder holds."""
        ...


def dump(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model without what its base holds."""
    base = model.base_names() if isinstance(model, OnBase) else frozenset()
    return {name: value for name, value in model.state_dict().items() if name not in base}


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights that `dump` returns."""
    base = {name: value for name, value in model.state_dict().items() if name not in weights}
    names = model.base_names() if isinstance(model, OnBase) else frozenset()
    model.load_state_dict({**{name: base[name] for name in base if name in names}, **weights})


class Unfilled(TorchFunctionMode):
    """Make models without drawing their weights, where only shapes matter: `with Unfilled(): model = ...`.

    No random number is used. Memory that is not written takes none of the machine's. On the meta device, the drawing
    alone would import torch's compiler, a second per process.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, unless it only draws numbers."""
        named = kwargs or {}
        if func in FILLS:
            return args[0] if args else named["tensor"]
        return func(*args, **named)
