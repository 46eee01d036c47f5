"""Every finished trial, durable the moment it finishes: `trials.jsonl` of the search's run.

A resumed search runs none of them again. A line cut off by a kill was not finished and counts for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sp500.errors import ConfigError
from sp500.runs.record import Plain
from sp500.runs.store import append_durably


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
    data: str = ""
    """Hash of the data it was trained on."""


class Ledger:
    """The results of one search, by config fingerprint. `data` is the hash of the data that they were made on.

    Raises ConfigError when the ledger holds results of other data.
    """

    def __init__(self, folder: Path, data: str = "") -> None:
        self.path = folder / "trials.jsonl"
        self._data = data
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        found = [TrialResult.model_validate_json(line) for line in lines]
        if data and any(result.data != data for result in found):
            raise ConfigError(f"{self.path} holds trials on other data than now; search it under another --name")
        self.results = {result.id: result for result in found}

    def add(self, result: TrialResult) -> None:
        """Keep a result; it is on the disk when this returns."""
        result = result.model_copy(update={"data": self._data})
        append_durably(self.path, result.model_dump_json())
        self.results[result.id] = result

    def best(self) -> TrialResult | None:
        """The trial with the lowest validation loss; ties go to the one that stands first in order of id."""
        scored = [(one.valid_loss, one.id) for one in self.results.values() if one.valid_loss is not None]
        return self.results[min(scored)[1]] if scored else None
