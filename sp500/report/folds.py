"""The newest walk-forward run: a sentence, a table, a figure, and its lines in a terminal.

The mean improvement has a 95% interval by Student's t over the folds, whose tests share no day; the few folds make it
wide. The spread is the standard deviation of what single folds found: it says what one more year may bring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from scipy.special import stdtrit

from sp500 import formatting
from sp500.breakdown import add_scores
from sp500.config.task import TaskKind, of_record
from sp500.formatting import (
    METRIC,
    NOTHING,
    against_naive,
    bounds,
    bounds_percent,
    fixed,
    percent,
    seconds,
    some,
)
from sp500.report import tables
from sp500.report.models.details import by_ticker
from sp500.report.models.results import Group, model_name
from sp500.report.models.scores import METRICS, SCALED, Metric, columns, explain_improvement, own_names
from sp500.report.section import Folded, Runs, Section
from sp500.report.tables import Table
from sp500.runs.record import RunRecord
from sp500.runs.results import FoldRow, Improvement, Metrics, Spread
from sp500.suspicion import find_signs, warn

if TYPE_CHECKING:
    from sp500.report.plot_style import Figure

Column = tuple[str, Callable[[FoldRow], Mapping[str, Any]], Metric]
"""Title, the part of a fold's row that it shows, and the metric."""
SCORE = {"error_rate": "accuracy"}
"""The metric that is shown for what an improvement is measured in, where that is another."""
RATIO = "sharpe_after_cost"
SHOWN = ("mse", "accuracy", "directional_accuracy", RATIO)


def newest(records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the newest walk-forward run that ended well, among records, oldest first."""
    walked = _list_ended(records)
    return walked[-1] if walked else None


def list_earlier(records: Sequence[RunRecord]) -> list[str]:
    """Return the walk-forward runs that ended well before the newest, newest first."""
    return [record.name for record in _list_ended(records)[-2::-1]]


def _list_ended(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.folds and record.metrics]


class FoldSection(Section):
    """The newest walk-forward run."""

    name, title = "folds", "Walk forward"

    def collect(self, runs: Runs) -> RunRecord | None:
        """Return the newest run."""
        found = newest(runs.records)
        return found and runs.whole(found)

    def sentences(self, found: RunRecord | None, runs: Runs) -> list[str]:
        """Return the verdict, if there is such a run."""
        return [verdict(found)] if found else []

    def parts(self, found: RunRecord | None, runs: Runs) -> tuple[Any, ...]:
        """Return figure, table, and remarks on earlier runs and on folds that failed.

        Of runs that the user chose every earlier one follows, folded.
        """
        if found is None:
            return ()
        earlier = list_earlier(runs.records)
        others: Sequence[Any] = tables.list_earlier(found.name, earlier, ("walk-forward run", "walk-forward runs"))
        if runs.chosen:
            records = {record.name: runs.whole(record) for record in runs.records if record.name in earlier}
            others = [Folded(name, (verdict(records[name]), *_detail(records[name]))) for name in earlier]
        return (*_detail(found), *others)

    def numbers(self, found: RunRecord | None, runs: Runs) -> dict[str, list[FoldRow]]:
        """Return its folds."""
        return {"folds": list(found.folds or ()) if found else []}


def _detail(found: RunRecord) -> tuple[Any, ...]:
    """Return figure and tables of a run, and the reasons of folds that failed."""
    failed = [f"Fold {row['fold']} failed: {row['reason']}" for row in found.folds or () if row["status"] != "ok"]
    parts = (_figure(found), _table(found), _by_ticker(found), *failed)
    return tuple(part for part in parts if part is not None)


def verdict(record: RunRecord) -> str:
    """Return how many folds the model won against the best naive forecast, by how much on average, and what weakens it.

    A result that is too good to be true has a warning before all else.
    """
    rows, gain = _good(record), record.metrics["improvement"]
    name = model_name(record.config["model"])
    subject = Group(record.name, formatting.reference_name(record.config["task"]), record, [], []).subject
    metric = METRIC.get(rows[0]["improvement"]["metric"], "test error")
    won = f"{record.metrics['better']} of {some(len(rows), 'fold')} better than the best naive forecast in {metric}"
    mean = "mean improvement not known"
    if gain:
        ends = _interval(gain)
        between = " to ".join(percent(end, 2, sign=True) for end in ends) if ends else ""
        known = f"95% interval {between}, {_judge(rows, gain)}" if ends else "one fold has no interval"
        mean = f"mean improvement {percent(gain['mean'], 2, sign=True)} ({known})"
    return f"{_suspect(record)}{subject}, {name} re-trained for every fold: {won}; {mean}.{_remarks(record)}"


def _suspect(record: RunRecord) -> str:
    """Return the warning in front of a verdict whose mean metrics are too good to be true."""
    parts = (record.metrics["test"], *record.metrics["naive"].values())
    test, *naive = ({key: moments["mean"] for key, moments in part.items()} for part in parts)
    windows = sum(row["test"].get("samples", 0) for row in _good(record))
    return warn(find_signs(record.config, record.data, {**test, "samples": windows}, naive))


def lines(record: RunRecord) -> list[str]:
    """Return the run as lines for a terminal: every fold and the verdict."""
    kind = of_record(record.config)
    return [*(f"  {line(row, kind)}" for row in record.folds or ()), verdict(record)]


def line(row: FoldRow, kind: TaskKind) -> str:
    """Return one fold as a line for a terminal."""
    head = f"fold {row['fold']}, test {' to '.join(row['splits']['test'])}"
    if row["status"] != "ok":
        return f"{head}: failed: {row['reason']}"
    gain, took = row["improvement"], f"epoch {row['best_epoch']}, {seconds(row['seconds'])}"
    key, word = SCORE.get(gain["metric"], gain["metric"]), against_naive(gain, row["best_epoch"])
    rival = kind.name_naive(gain["over"])
    title, number = METRICS.get(key, (SCALED.get(key, key), "{:.6g}".format))
    text = f"{title} {number(row['test'][key])}, naive ({rival}) {number(_rival(row)[key])}"
    if ends := bounds(gain):
        value, low, high = (percent(share, 2, sign=True) for share in (gain["value"], *ends))
        text += f", {value} ({low} to {high}, {word})"
    return f"{head}: {text}, {took}"


def _good(record: RunRecord) -> list[FoldRow]:
    return [row for row in record.folds or () if row["status"] == "ok"]


def _judge(rows: Sequence[FoldRow], gain: Spread) -> str:
    """Return the side of zero of the mean improvement; 'naive kept' if all folds are the naive forecast themselves."""
    low, high = _interval(gain) or (None, None)
    kept = all(row["best_epoch"] == 0 for row in rows)
    return against_naive({"low": low, "high": high}, 0 if kept else None)


def _interval(gain: Spread) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over folds; None for one fold."""
    if gain["deviation"] is None:
        return None
    half = float(stdtrit(gain["count"] - 1, 0.975)) * gain["deviation"] / math.sqrt(gain["count"])
    return gain["mean"] - half, gain["mean"] + half


def _remarks(record: RunRecord) -> str:
    """Return folds that kept the naive forecast or failed, and those whose dates the choice of the config has seen."""
    rows, failed = _good(record), record.metrics["failed"]
    kept = sum(row["best_epoch"] == 0 for row in rows)
    seen = [str(row["fold"]) for row in rows if row["blind"] is False]
    remarks = f" {some(kept, 'fold')} kept the naive forecast that training starts from." if kept else ""
    remarks += f" {some(failed, 'fold')} failed." if failed else ""
    if seen:
        remarks += (
            f" Not blind, since the config was chosen on dates of the test or after: fold {formatting.join(seen)}."
        )
    return remarks


def _table(record: RunRecord) -> Table:
    """Return a table with one line per fold, then mean and spread."""
    kind, numeric = of_record(record.config), _columns(record)
    cell_rows = []
    for row in record.folds or ():
        cells = {"Fold": str(row["fold"])} | dict(zip(("Test from", "to"), row["splits"]["test"], strict=True))
        if row["status"] == "ok":
            gain = row["improvement"]
            word = against_naive(gain, row["best_epoch"])
            cells |= {"Trained on": fixed(row["windows"]["train"], 0), "Best epoch": str(row["best_epoch"])}
            cells |= {title: metric.text(part(row)) for title, part, metric in numeric[:3]}
            cells |= {"95% interval, %": bounds_percent(gain), "Verdict": word}
            cells |= {"Best naive": kind.name_naive(gain["over"])}
            cells |= {title: metric.text(part(row)) for title, part, metric in numeric[3:]}
        cell_rows.append(cells)
    for name, of in (("Mean", fmean), ("Spread", stdev)):
        cells = {"Fold": name}
        for title, part, metric in numeric:
            values = [value for row in _good(record) if (value := part(row).get(metric.key)) is not None]
            cells[title] = metric.number(of(values)).lstrip("+" if of is stdev else "") if len(values) > 1 else NOTHING
        cell_rows.append(cells)
    kinds = ["" if row["status"] == "ok" else "bad" for row in record.folds or ()]
    text = ("Fold", "Test from", "to", "Verdict", "Best naive")
    return tables.table(
        f"Every fold of {record.name}", cell_rows, text=text, kinds=[*kinds, "naive", "naive"], note=_note(record)
    )


def _by_ticker(record: RunRecord) -> Table | None:
    """Return a table of the tickers over the tests of all folds; None for one ticker and for earlier versions."""
    tests = [details for row in _good(record) if (details := row.get("breakdown"))]
    scores = add_scores([{score["ticker"]: score for score in details["tickers"]} for details in tests])
    return by_ticker(f"Every ticker of {record.name}, all folds together", scores)


def _note(record: RunRecord) -> str:
    """Return a note on what the columns mean."""
    improvement = explain_improvement([row["improvement"] for row in _good(record)], starts_naive=True)
    return " ".join(
        [
            "Trained on: training windows, all before the test and purged of what overlaps it.",
            *improvement,
            "Best naive: the naive forecast with the lowest error on that fold's test, which nobody could have known.",
            "Spread: standard deviation over the folds.",
            f"Net Sharpe: after {formatting.setting(record.config['eval']['cost_bps'])} bp per unit of turnover, "
            "annualised, with its 95% interval.",
        ]
    )


def _columns(record: RunRecord) -> list[Column]:
    """Return every column that has a mean: the three that are compared come first."""
    rows = _good(record)
    key = SCORE.get(rows[0]["improvement"]["metric"], rows[0]["improvement"]["metric"])
    tests = [test for row in rows for test in (row["test"], _rival(row))]
    shown = [
        metric for metric in columns(tests) if metric.key in {*SHOWN, key, *own_names([row["test"] for row in rows])}
    ]
    compared = next(metric for metric in shown if metric.key == key)
    gain = Metric("Against naive", "value", partial(percent, digits=2, sign=True))
    rest = [metric for metric in shown if metric is not compared]
    held = [metric for metric in rest if metric.key == RATIO and any(map(_buy_and_hold, rows))]
    return [
        (compared.title, _test, compared),
        (f"Naive {compared.title}", _rival, compared),
        (gain.title, _gain, gain),
        *((metric.title, _test, metric) for metric in rest),
        *((f"{metric.title}, {formatting.BUY_AND_HOLD}", _buy_and_hold, metric) for metric in held),
    ]


def _test(row: FoldRow) -> Metrics:
    return row["test"]


def _gain(row: FoldRow) -> Improvement:
    return row["improvement"]


def _buy_and_hold(row: FoldRow) -> Metrics:
    """Return what buy-and-hold did on the fold's test; empty if nothing was traded."""
    held: Metrics = row["test"].get("buy_and_hold") or {}
    return held


def _rival(row: FoldRow) -> Metrics:
    return row["naive"][row["improvement"]["over"]]


def _figure(record: RunRecord) -> Figure:
    """Draw dot and whisker per fold, and a diamond for the mean."""
    # matplotlib takes a second to load, which a terminal need not wait for.
    from sp500.report.plot_style import Dot, draw_dots

    dots = []
    for row in _good(record):
        gain = row["improvement"]
        if gain["value"] is not None:
            label = f"{row['fold']}: {' to '.join(row['splits']['test'])}"
            dots.append(Dot(label, gain["value"], bounds(gain), against_naive(gain, row["best_epoch"])))
    if mean := record.metrics["improvement"]:
        dots.append(Dot("mean", mean["mean"], _interval(mean), _judge(_good(record), mean), mark="D"))
    caption = (
        "Improvement over the best naive forecast of each fold, with its 95% interval. The diamond is the mean of the "
        "folds with its interval by Student's t."
    )
    metric = METRIC.get(_good(record)[0]["improvement"]["metric"], "error")
    return draw_dots(f"folds-{record.name}", dots, caption, label=f"{metric} below that of the best naive forecast, %")
