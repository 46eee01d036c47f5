"""The shape of a dataset that a network needs before it can be made."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Shape(Protocol):
    """The shape of a dataset, as a network needs it."""

    @property
    def window(self) -> int:
        """Rows of a window."""
        ...

    @property
    def features(self) -> int:
        """Numbers of a row."""
        ...

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row: (feature,), or (height, width, channel)."""
        ...

    @property
    def outputs(self) -> int:
        """Numbers per forecast."""
        ...

    @property
    def naive_output(self) -> float:
        """The output with which training starts."""
        ...
