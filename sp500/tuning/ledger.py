"""Every finished trial, durable the moment it finishes: `trials.jsonl` of the search's run.

A resumed search runs none of them again. A line cut off by a kill was not finished and counts for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sp500.runs.record import Plain
from sp500.runs.store import append_durably, write_atomic


class TrialResult(Plain):
    """How one config did."""

    id: str
    overrides: dict[str, Any]
    status: Literal["ok", "failed"]
    reason: str = ""
    valid_loss: float | None = None
    """Best mean validation loss over the epochs."""
    best_epoch: int | None = None
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0
    """Training and evaluation of this trial alone."""


class Ledger:
    """The results of one search, by config fingerprint."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trials.jsonl"
        self.results: dict[str, TrialResult] = {}
        if self.path.exists():
            text = self.path.read_text()
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # a line appended later would be glued to the torn one
                write_atomic(self.path, whole)
            found = [TrialResult.model_validate_json(line) for line in whole.splitlines()]
            self.results = {result.id: result for result in found}

    def add(self, result: TrialResult) -> None:
        """Keep a result; it is on the disk when this returns."""
        append_durably(self.path, result.model_dump_json())
        self.results[result.id] = result

    def best(self) -> TrialResult | None:
        """The trial with the lowest validation loss; ties go to the one that stands first in order of id."""
        scored = [(one.valid_loss, one.id) for one in self.results.values() if one.valid_loss is not None]
        return self.results[min(scored)[1]] if scored else None
