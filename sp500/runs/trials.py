"""The ledger of a search: files of its run in which each line is durable before anything follows from it.

    trials.jsonl    every finished trial: a resumed search runs none of them again
    rungs.jsonl     every answer of a stopper: it is given once, whatever is killed after it
    asked.jsonl     every call of a method that learns from results: a resumed search first runs what has no result

A line cut off by a kill counts for nothing. A damaged line is refused with its number.
"""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from sp500.errors import ConfigError, SP500Error
from sp500.formatting import some
from sp500.runs.checksums import append_line, read_rows
from sp500.runs.record import Plain
from sp500.runs.results import ChosenConfig, Overrides

FILE, RUNGS, ASKED = "trials.jsonl", "rungs.jsonl", "asked.jsonl"


class TrialResult(Plain):
    """The result of one config."""

    id: str
    overrides: Overrides
    status: Literal["ok", "failed"]
    reason: str = ""
    valid_loss: float | None = None
    """Best mean validation loss over the epochs and the untrained model, whose forecast is the naive one."""
    naive_loss: float | None = None
    """The loss of a model that always answers zero."""
    best_epoch: int | None = None
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0
    """Training and evaluation of this trial alone."""
    cpu_seconds: float | None = None
    """CPU seconds of its process meanwhile; None if that is not all, and for one that failed."""
    dataset: str = ""
    """Name of the data that it was trained on."""
    data: str = ""
    """Hash of all data of its search."""
    valid_excess_sharpe: float | None = None
    """Sharpe ratio per trade, not annualised, of trading the validation forecasts in excess of always being long. None
    if nothing can be traded, and for a config that is always long."""
    finished: datetime | None = None
    """When it ended (UTC)."""
    pack: int = 1
    """Configs that trained together, this one included."""
    stopped: int | None = None
    """The rung at which a stopper ended it; None: it trained to its end."""

    monitored: float | None = Field(default=None, exclude_if=lambda score: score is None)
    """What `train.monitor` names, if not the validation loss; lower is better."""

    @property
    def score(self) -> float | None:
        """Validation loss as a share of the naive one, so that trials on different data compare; lower is better.

        Or what `train.monitor` names.
        """
        if self.monitored is not None:
            return self.monitored
        return self.valid_loss / self.naive_loss if self.valid_loss is not None and self.naive_loss else self.valid_loss

    @property
    def choice(self) -> ChosenConfig:
        """The config with its loss, as a record keeps the best."""
        assert self.valid_loss is not None
        return {"id": self.id, "overrides": self.overrides, "valid_loss": self.valid_loss, "score": self.score}

    @property
    def score_or_infinity(self) -> float:
        """The score, for what compares numbers; infinity if the trial failed or its score is not finite."""
        score = self.score if self.status == "ok" else None
        return score if score is not None and math.isfinite(score) else math.inf


class RungDecision(Plain):
    """A stopper's answer to the value that a trial reported at a rung."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    trial: str
    rung: int
    value: float
    goes_on: bool


class Asked(Plain):
    """A call of a suggester: the trials that it asked for."""

    count: int
    """How many were wanted."""
    ids: list[str]
    values: list[Overrides]
    """All that the suggester chose for each, also what the trial leaves out."""
    known: int
    """Number of results that the suggester knew: the first ones of trials.jsonl."""


def read_trials(folder: Path) -> list[TrialResult]:
    """Return the results in the order that they came. Raises ConfigError for a damaged line."""
    return read_rows(folder / FILE, TrialResult)


class Ledger:
    """The results of one search, by config fingerprint. `data` is the hash of the data that they were made on.

    Raises ConfigError when the ledger holds results of other data, or a damaged line.
    """

    def __init__(self, folder: Path, data: str = "") -> None:
        self.path = folder / FILE
        self._data = data
        results = read_trials(folder)
        if data and any(result.data != data for result in results):
            raise ConfigError(f"{self.path} holds trials on other data than now; search it under another --name")
        self.results = {result.id: result for result in results}
        self.rerun = len(results) - len(self.results)
        """Results of configs that had one before: nothing should run twice."""
        self.decisions = read_rows(folder / RUNGS, RungDecision)
        self.asked = read_rows(folder / ASKED, Asked)

    def add(self, result: TrialResult) -> None:
        """Append a result; it is on the disk when this returns."""
        result = result.model_copy(update={"data": self._data})
        append_line(self.path, result.model_dump_json())
        self.rerun += result.id in self.results
        self.results[result.id] = result

    def add_decision(self, decision: RungDecision) -> None:
        """Append a stopper's answer; it is on the disk when this returns."""
        append_line(self.path.with_name(RUNGS), decision.model_dump_json())
        self.decisions.append(decision)

    def add_asked(self, asked: Asked) -> None:
        """Append a call of the suggester; it is on the disk when this returns."""
        append_line(self.path.with_name(ASKED), asked.model_dump_json())
        self.asked.append(asked)

    def best(self) -> TrialResult | None:
        """Return the trial with the lowest score; None if there is none. Of a tie, the one whose id sorts first."""
        scored = [(result.score, result.id) for result in self.results.values() if result.score is not None]
        return self.results[min(scored)[1]] if scored else None

    def choose_best(self) -> TrialResult:
        """Return the best trial. Raises SP500Error with the first reasons if all failed."""
        best = self.best()
        if best is None:
            reasons = [f"  {result.overrides}: {result.reason}" for result in self.results.values()]
            raise SP500Error("\n".join([f"all {some(len(reasons), 'trial')} failed:", *reasons[:5]]))
        return best
