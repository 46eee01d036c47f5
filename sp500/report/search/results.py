"""Findings of the newest search: its sides, their trials, and what was computed of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

from sp500 import metrics
from sp500.config.task import of_record
from sp500.report.search.arms import name_arms
from sp500.report.search.hyperparameters import Trial, drop_failed, importance
from sp500.runs import compare
from sp500.runs.record import RunRecord
from sp500.runs.results import SearchComparison, SearchSummary
from sp500.runs.trials import TrialResult

LOSS = "valid_loss"
"""What `train.monitor` names by default."""
NAIVE = " Naive: the loss of always answering zero, which compares sets of data."
"""Addition to a caption if trials ran on several."""


@dataclass(frozen=True)
class Side:
    """One arm of the search."""

    name: str
    """one after another | packed without Ray | Ray Tune."""
    record: RunRecord
    trials: dict[str, Trial]
    """By id, in the order in which they ended."""

    @property
    def elapsed(self) -> dict[str, float] | None:
        """Seconds from the start of the first trial to the end of each; None if an older ledger does not say, and
        if the search was interrupted, since the pause would be counted.
        """
        resumed = self.record.search and self.record.search["resumed"]
        if resumed or any(trial.finished is None for trial in self.trials.values()):
            return None
        ends = {key: trial.finished for key, trial in self.trials.items() if trial.finished}
        # A trial's seconds are its share of its pack's.
        took = {key: trial.seconds * trial.pack for key, trial in self.trials.items()}
        begun = min((end - timedelta(seconds=took[key]) for key, end in ends.items()), default=None)
        return {key: (end - begun).total_seconds() for key, end in ends.items()} if begun else None


@dataclass(frozen=True)
class Search:
    """One search; nothing in it if none ran."""

    compared: SearchComparison
    """Result of `compare.searches`; None if it needs an arm that did not run."""
    sides: list[Side]
    shown: Side | None
    """The arm whose trials represent the search: the one that found the chosen config, or that has most trials."""
    record: RunRecord | None
    """The record that speaks for the search: the one that timed all arms, or that of the newest arm."""
    importance: dict[str, float] | str
    """Share of each setting in the variation of the loss, or why it is not known."""
    relative: bool
    """True if trials on different data are compared: by their loss as a share of that of always answering zero."""
    earlier: list[str] = field(default_factory=list)
    """The last run of each earlier search, newest first."""

    @property
    def name(self) -> str:
        """The name of its run, for the names of figures."""
        return self.record.name if self.record else ""

    @property
    def loss(self) -> str:
        """The number that trials are compared by."""
        return "validation loss / naive" if self.relative else self.loss_name

    @property
    def metric(self) -> str:
        """The metric of a program of the user's; '' of a search of configs."""
        return self.summary.get("metric", "") if self.summary else ""

    @property
    def measure(self) -> str:
        """The metric of a program or what `train.monitor` names; '' if trials are compared by the validation loss."""
        return name_measure(self.record)[0] if self.record else ""

    @property
    def sign(self) -> int:
        """-1 if a loss is the negative of the measure, whose highest value is the best."""
        return name_measure(self.record)[1] if self.record else 1

    @property
    def loss_name(self) -> str:
        """The number that trials are compared by, of which the lowest is the best."""
        return f"{'minus ' if self.sign < 0 else ''}{self.measure}" if self.measure else "validation loss"

    @property
    def arm_names(self) -> Mapping[str, str]:
        """The names of its arms for a reader."""
        return name_arms(self.summary)

    @property
    def loss_definition(self) -> str:
        """The definition of the loss, if the task has a metric that looks the same: that of returns is on scaled
        returns.
        """
        config = self.record.config if self.record else {}
        data = config.get("data", {})
        if not of_record(config).scales_targets or data.get("npz_path") or data.get("norm", "none") == "none":
            return ""
        return (
            "mean squared error of the target divided by its standard deviation in training, so it does not compare "
            "with the test MSE. Its level depends mostly on how calm the validation years were."
        )

    @property
    def summary(self) -> SearchSummary | None:
        """The record's summary of the search."""
        return self.record.search if self.record else None

    @property
    def trials(self) -> list[Trial]:
        """The trials of `shown`."""
        return list(self.shown.trials.values()) if self.shown else []

    @property
    def gaps(self) -> list[float]:
        """Relative gap of the losses of each config that ran in several arms."""
        losses: dict[str, list[float]] = {}
        for side in self.sides:
            for trial in drop_failed(list(side.trials.values())):
                losses.setdefault(trial.id, []).append(trial.loss)
        return [compare.relative_gap(min(several), max(several)) for several in losses.values() if len(several) > 1]

    @property
    def trades_per_year(self) -> float:
        """The number of times per year that a forecast is traded."""
        data = self.record.config.get("data", {}) if self.record else {}
        return metrics.TRADING_DAYS / int(data.get("horizon", 1))

    @property
    def failed(self) -> int:
        """Configs that failed in the arm with most failures."""
        summaries = [self.summary, *(side.record.search for side in self.sides)]
        return max((summary["failed"] for summary in summaries if summary), default=0)

    @property
    def numbers(self) -> dict[str, object]:
        """Its part of report.json; nulls if no search ran."""
        metrics = self.record.metrics if self.record else {}
        test = {key: value for key, value in metrics.get("test", {}).items() if key != "improvement"}
        return {
            **self.compared,
            "failed": self.failed if self.record else None,
            "method": self.summary and self.summary["method"],
            "best": self.summary and self.summary["best"],
            "valid": metrics.get("valid"),
            "test": test or None,
            "deflated_sharpe": self.summary and self.summary["deflated_sharpe"],
            "importance": None if isinstance(self.importance, str) else self.importance,
            "history": {side.record.arm: best_so_far(side) for side in self.sides} or None,
        }


def newest(records: Sequence[RunRecord], trials: Mapping[str, Sequence[TrialResult]]) -> Search:
    """Return the newest search among records, oldest first; trials by run.

    One in all modes timed its arms from start to exit: its numbers count.
    """
    arms, timed = compare.newest_search(records)
    numbers = compare.searches(arms)
    if timed is not None and timed.search is not None:
        numbers = _comparison(timed.search)
    ran = [(arms[arm], trials.get(arms[arm].name, [])) for arm in compare.EVERY_ARM if arm in arms]
    is_monitored = any(trial.monitored is not None for _, results in ran for trial in results)
    relative = not is_monitored and any(len({trial.dataset for trial in results}) > 1 for _, results in ran)
    sides = [_side(*run_of_arm, relative=relative) for run_of_arm in ran]
    newer = max((side.record for side in sides), key=lambda record: record.finished, default=None)
    record = timed or newer
    shown = _choose_side(sides, record)
    weights = importance(list(shown.trials.values()) if shown else [])
    return Search(numbers, sides, shown, record, weights, relative, _list_earlier(records))


def find(records: Sequence[RunRecord], trials: Mapping[str, Sequence[TrialResult]], name: str) -> Search:
    """Return the search that a run of this name is part of."""
    key = next(record.search["key"] for record in records if record.name == name and record.search)
    return newest([record for record in records if record.search and record.search["key"] == key], trials)


def name_measure(record: RunRecord) -> tuple[str, int]:
    """Return what a search compares by if not the validation loss, else '', and -1 if its highest value is the best."""
    if record.search and (metric := record.search.get("metric")):
        return metric, -1 if record.search.get("maximize") else 1
    train = record.config.get("train") or {}
    if (monitor := train.get("monitor", LOSS)) == LOSS:
        return "", 1
    return monitor, -1 if train.get("monitor_mode") == "max" else 1


def read_best(record: RunRecord, search: SearchSummary) -> float:
    """Return the best value of what a search compares by, as a reader knows it."""
    (measure, sign), best = name_measure(record), search["best"]
    score = best["score"] if measure and not search.get("metric") else None
    return sign * (best["valid_loss"] if score is None else score)


def _list_earlier(records: Sequence[RunRecord]) -> list[str]:
    """Return a name for each search before the newest: that of its last run, since its arms are runs of one key."""
    last: dict[str, str] = {}
    for record in reversed(records):
        if record.search and record.status == "ok":
            last.setdefault(record.search["key"], record.name)
    return list(last.values())[1:]


def _comparison(search: SearchSummary) -> SearchComparison:
    """Return what a search in all modes says of its arms."""
    return {
        "configs": search["configs"],
        "arms": search.get("arms"),
        "packing_speedup": search.get("packing_speedup"),
        "ray_speedup": search.get("ray_speedup"),
        "same_best": search.get("same_best"),
        "metric_gap": search.get("metric_gap"),
        "break_even": search.get("break_even"),
    }


class Best(TypedDict):
    """The best trial until then."""

    trial: int
    """Counted from 1."""
    seconds: float | None
    loss: float


def best_so_far(side: Side) -> list[Best]:
    """Return the trials that were better than all before them."""
    bests: list[Best] = []
    elapsed = side.elapsed
    for number, (key, trial) in enumerate(side.trials.items(), 1):
        if drop_failed([trial]) and (not bests or trial.loss < bests[-1]["loss"]):
            at = None if elapsed is None else elapsed[key]
            bests.append({"trial": number, "seconds": at, "loss": trial.loss})
    return bests


def _side(record: RunRecord, results: Sequence[TrialResult], *, relative: bool) -> Side:
    # A config that was run again keeps its first place in the ledger.
    ends = {result.id: result.finished for result in results if result.finished}
    ordered = sorted(results, key=lambda result: ends[result.id]) if len(ends) == len(results) else results
    trials = [Trial(**result.model_dump(), loss=_loss(result, relative)) for result in ordered]
    return Side(name_arms(record.search)[record.arm], record, {trial.id: trial for trial in trials})


def _loss(result: TrialResult, relative: bool) -> float:
    loss = result.score if relative or result.monitored is not None else result.valid_loss
    return math.inf if loss is None else loss


def _choose_side(sides: Sequence[Side], record: RunRecord | None) -> Side | None:
    """Return the arm whose best trial a search in all modes names. The losses of the others may differ by rounding."""
    best = record.search["best"] if record and record.search else None

    def rank(side: Side) -> tuple[bool, int]:
        trial = side.trials.get(best["id"]) if best else None
        return bool(best and trial and trial.valid_loss == best["valid_loss"]), len(side.trials)

    return max(sides, key=rank, default=None)
