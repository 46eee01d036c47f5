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

    def lead(self, found: RunRecord | None, runs: Runs) -> str:
        """Return the verdict without the count of folds."""
        return summarize(found) if found else ""

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
    """Return how many folds the model won against the best naive forecast, by how much, and whether by luck."""
    rows = _good(record)
    metric = METRIC.get(rows[0]["improvement"]["metric"], "test error")
    trained = [row for row in rows if row["best_epoch"] != 0]
    kept, better = len(rows) - len(trained), record.metrics["better"]
    if trained:
        counts = [f"{better} beat the best naive forecast (lower {metric})", f"{len(trained) - better} did not"]
        counts += [f"{kept} kept the naive forecast that training starts from"] if kept else []
        outcome = f"of {some(len(rows), 'fold')}, {formatting.join(counts)}. {_mean(record.metrics['improvement'])}"
    else:
        unchanged = f"{some(kept, 'fold')} kept the naive forecast that training starts from"
        outcome = f"{unchanged}, so there is nothing to compare."
    return f"{_introduce(record)}{outcome}{_but(record)}"


def summarize(record: RunRecord) -> str:
    """Return the mean improvement over the folds in short; the verdict if it has no interval."""
    gain = record.metrics["improvement"]
    half = gain and _half_width(gain)
    if half is None or all(row["best_epoch"] == 0 for row in _good(record)):
        return verdict(record)
    mean = gain["mean"]
    low, high = (percent(end, 2, sign=True) for end in (mean - half, mean + half))
    clear = f"{'better' if mean > 0 else 'worse'} than the naive forecasts"
    word = clear if abs(mean) > half else "not clear whether better or worse"
    improved = f"mean improvement of {gain['count']} folds {percent(mean, 2, sign=True)}"
    return f"{_introduce(record)}{improved} (95% interval {low} to {high}), {word}.{_but(record)}"


def _introduce(record: RunRecord) -> str:
    """Return what was forecast and by which model, after a warning if the result is too good to be true."""
    name = model_name(record.config["model"])
    subject = Group(record.name, formatting.reference_name(record.config["task"]), record, [], []).subject
    return f"{_suspect(record)}{subject}, {name} re-trained for every fold: "


def _suspect(record: RunRecord) -> str:
    """Return the warning in front of a verdict whose mean metrics are too good to be true."""
    parts = (record.metrics["test"], *record.metrics["naive"].values())
    test, *naive = ({key: moments["mean"] for key, moments in part.items()} for part in parts)
    windows = sum(row["test"].get("samples", 0) for row in _good(record))
    return warn(find_signs(record.config, record.data, {**test, "samples": windows}, naive))


def lines(record: RunRecord) -> list[str]:
    """Return the run as lines for a terminal: every fold, mean and spread, and the verdict."""
    kind = of_record(record.config)
    printed = [f"  {line(row, kind)}" for row in record.folds or ()]
    naive = {f"naive, {kind.name_naive(name)}": moments for name, moments in record.metrics["naive"].items()}
    for name, moments in {"model": record.metrics["test"], **naive}.items():
        spreads = [_spread(key, moments[key]) for key in _names(record) if key in moments]
        printed.append(f"  mean over folds, {name}: {', '.join(spreads)}")
    if held := [ratio for row in _good(record) if (ratio := _buy_and_hold(row).get(RATIO)) is not None]:
        printed.append(f"  mean over folds, {formatting.BUY_AND_HOLD}: {_spread(RATIO, _moments(held))}")
    return [*printed, verdict(record)]


def line(row: FoldRow, kind: TaskKind) -> str:
    """Return one fold as a line for a terminal."""
    head = f"fold {row['fold']}, test {' to '.join(row['splits']['test'])}"
    if row["status"] != "ok":
        return f"{head}: failed: {row['reason']}"
    gain, took = row["improvement"], f"epoch {row['best_epoch']}, {seconds(row['seconds'])}"
    key, word = SCORE.get(gain["metric"], gain["metric"]), against_naive(gain, row["best_epoch"])
    rival = kind.name_naive(gain["over"])
    text = f"{_title(key)} {_number(key, row['test'][key])}, naive ({rival}) {_number(key, _rival(row)[key])}"
    if ends := bounds(gain):
        value, low, high = (percent(share, 2, sign=True) for share in (gain["value"], *ends))
        text += f", {value} ({low} to {high}, {word})"
    return ", ".join([f"{head}: {text}", *_ratios(row), took])


def _ratios(row: FoldRow) -> list[str]:
    """Return the net Sharpe ratios of the model and of buy-and-hold with their intervals."""
    parts = (("", row["test"]), (f"{formatting.BUY_AND_HOLD} ", _buy_and_hold(row)))
    return [
        f"{name}{metric.title} {metric.text(part)}"
        for name, part in parts
        for metric in columns([part])
        if metric.key == RATIO
    ]


def _good(record: RunRecord) -> list[FoldRow]:
    return [row for row in record.folds or () if row["status"] == "ok"]


def _own_names(record: RunRecord) -> list[str]:
    """Return the names of the metrics of a user's task."""
    return own_names([row["test"] for row in _good(record)])


def _names(record: RunRecord) -> list[str]:
    """Return the metrics that a terminal shows, each once."""
    return list(dict.fromkeys((*SHOWN, _metric(record), *_own_names(record))))


def _metric(record: RunRecord) -> str:
    metric = _good(record)[0]["improvement"]["metric"]
    return SCORE.get(metric, metric)


def _moments(values: Sequence[float]) -> Spread:
    return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None, "count": len(values)}


def _spread(key: str, moments: Spread) -> str:
    spread = "" if moments["deviation"] is None else f" (spread {_number(key, moments['deviation'])})"
    return f"{_title(key)} {_number(key, moments['mean'])}{spread}"


def _title(key: str) -> str:
    return METRICS[key][0] if key in METRICS else SCALED.get(key, key)


def _number(key: str, value: float) -> str:
    """Return a metric for a terminal, where an error is not scaled as it is in the report's columns."""
    return METRICS[key][1](value) if key in METRICS else f"{value:.6g}"


def _mean(gain: Spread | None) -> str:
    """Return the mean improvement, and what its interval allows to say."""
    if gain is None:
        return "No improvement can be computed, since the naive forecast is never wrong."
    mean, count, half = gain["mean"], gain["count"], _half_width(gain)
    if half is None:
        known = f"The improvement is {percent(mean, 2, sign=True)}."
        return f"{known} One fold has no interval, so it is not clear whether that is more than luck."
    low, high = (percent(end, 2, sign=True) for end in (mean - half, mean + half))
    head = f"The mean improvement over all {count} folds is {percent(mean, 2, sign=True)}"
    head += f" (95% interval {low} to {high}, Student's t)."
    if abs(mean) <= half:
        return f"{head} It is not clear whether the model is better or worse."
    return f"{head} The model is {'better' if mean > 0 else 'worse'} than the naive forecasts."


def _half_width(gain: Spread) -> float | None:
    """Return half of the 95% interval of the mean over folds; None for one fold."""
    if gain["deviation"] is None:
        return None
    return float(stdtrit(gain["count"] - 1, 0.975)) * gain["deviation"] / math.sqrt(gain["count"])


def _but(record: RunRecord) -> str:
    """Return what weakens the verdict: folds that failed, or whose dates the choice of the config has seen."""
    failed = record.metrics["failed"]
    remarks = f" {some(failed, 'fold')} failed." if failed else ""
    seen_folds = [str(row["fold"]) for row in _good(record) if row["blind"] is False]
    if seen_folds:
        single = len(seen_folds) == 1
        remarks += (
            f" {'Fold' if single else 'Folds'} {formatting.join(seen_folds)} {'is' if single else 'are'} not blind: "
            "the search that chose the config validated on dates of the test or after."
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
    rows, key = _good(record), _metric(record)
    tests = [test for row in rows for test in (row["test"], _rival(row))]
    shown = [metric for metric in columns(tests) if metric.key in {*SHOWN, _metric(record), *_own_names(record)}]
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
        half, middle = _half_width(mean), mean["mean"]
        ends = None if half is None else (middle - half, middle + half)
        kept = all(row["best_epoch"] == 0 for row in _good(record))
        word = against_naive({"low": ends and ends[0], "high": ends and ends[1]}, 0 if kept else None)
        dots.append(Dot("mean", middle, ends, word, mark="D"))
    caption = (
        "Improvement over the best naive forecast of each fold, with its 95% interval. The diamond is the mean of the "
        "folds with its interval by Student's t."
    )
    metric = METRIC.get(_good(record)[0]["improvement"]["metric"], "error")
    return draw_dots(f"folds-{record.name}", dots, caption, label=f"{metric} below that of the best naive forecast, %")
