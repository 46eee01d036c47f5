"""What a record holds of a run of a program."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12


class ProgramSummary(TypedDict):
    """What a program of the user's printed and used."""

    metric: str
    value: float | None
    """The last value of the metric; None if it printed none."""
    epochs: int
    """The last epoch of its lines."""
    samples: int | None
    """Samples trained on, if its last line says so."""
    seconds: float
    """Of its slowest rank."""
    cpu_seconds: float
    """Of all ranks."""
    memory_bytes: list[int]
    """Peak of each rank with all its processes."""
