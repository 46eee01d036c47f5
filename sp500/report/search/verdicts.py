"""Verdicts on a search: its best config, the gain of packing and Ray, and how far the best can be trusted.

Every sentence is computed from the findings, and says "slower", "worse" or "cannot be told" if so.
"""

from __future__ import annotations

from sp500 import formatting
from sp500.formatting import fixed, percent, some
from sp500.report.models import scores
from sp500.report.search import arms
from sp500.report.search.results import Search, read_best
from sp500.runs.record import RunRecord
from sp500.suspicion import find_signs, warn

SURE = 0.95
SAME = 1e-5
"""Relative gap below which two validation losses are reported as the same, to the digits that are shown."""
COMPARABLE = ("r2", "accuracy", "sharpe_after_cost")
"""Metrics that can be compared between splits. An MSE cannot, since the splits differ in volatility, nor can the share
of right directions, since they differ in how often prices rose."""


def sentences(search: Search) -> list[str]:
    """Return all sentences on the search; nothing if no search ran."""
    if search.record is None:
        return []
    compared = arms.sentences(search.compared, search.summary)
    lines = [*compared, *apart(search), *best(search), *splits(search), *luck(search)]
    return [find_suspects(search.record) + lines[0], *lines[1:]] if lines else []


def find_suspects(record: RunRecord) -> str:
    """Return the warning before all else if the chosen config is too good to be true."""
    test, naive = (record.metrics.get(part) or {} for part in ("test", "naive"))
    return warn(find_signs(record.config, record.data, test, naive.values()))


def apart(search: Search) -> list[str]:
    """Return how far the arms are apart on one and the same config, if they chose different ones."""
    if search.compared["same_best"] is not False:
        return []
    gaps = search.gaps
    if not gaps:
        return []
    return [f"The validation losses of one config differ by up to {percent(max(gaps), 2)} between the arms."]


def best(search: Search) -> list[str]:
    """Return how many configs were tried and how many failed, and which was chosen."""
    summary, configs = search.summary, search.compared["configs"]
    if not search.record or not summary or not configs:
        return []
    chosen = summary["best"]
    failed = f", {search.failed:,} of which failed" if search.failed else ""
    settings = formatting.config(chosen["overrides"]) or "the base settings"
    naive = f", {percent(chosen['score'], 2)} of that of always answering zero" if search.relative else ""
    loss = f"{search.measure or 'validation loss'} {read_best(search.record, summary):.6g}{naive}"
    arm = f" {search.shown.name}" if search.shown and search.compared["same_best"] is False else ""
    chose = f"Best of {some(configs, 'config')} tried{arm}{failed}: {settings} ({loss})."
    return [chose, *_again(search), *arms.halving(summary), *arms.describe_stopped(summary)]


def _again(search: Search) -> list[str]:
    """Return that the chosen config, trained again on its own, is another model than in the search, if so."""
    record, summary = search.record, search.summary
    if record is None or summary is None or record.best_loss is None:
        return []
    searched = summary["best"]["valid_loss"]
    if abs(record.best_loss - searched) <= SAME * abs(searched):
        return []
    return [
        f"Trained again alone, it reached {record.best_loss:.6g} at epoch {record.best_epoch}, perhaps by rounding "
        "(--train.dtype float64 would show it). All metrics of the chosen config are of this second model, whose "
        "weights the run keeps."
    ]


def splits(search: Search) -> list[str]:
    """Return the chosen config on validation and on the test."""
    metrics = search.record.metrics if search.record else {}
    valid, test = metrics.get("valid") or {}, metrics.get("test") or {}
    shown = [
        metric
        for metric in scores.columns([valid, test])
        if metric.key in COMPARABLE and valid.get(metric.key) is not None and test.get(metric.key) is not None
    ]
    first, second = (", ".join(f"{metric.title} {metric.text(split)}" for metric in shown) for split in (valid, test))
    return [f"The chosen config on validation: {first}; on the test: {second}."] if shown else []


def luck(search: Search) -> list[str]:
    """Return the deflated Sharpe ratio of the returns in excess of buy-and-hold; nothing if nothing was traded."""
    deflated = search.summary["deflated_sharpe"] if search.summary else None
    valid = (search.record.metrics if search.record else {}).get("valid") or {}
    if not deflated:
        few = "Luck cannot be ruled out: fewer than two configs have a Sharpe ratio in excess of buy-and-hold."
        return [few] if valid.get("sharpe_after_cost") is not None else []
    year = search.trades_per_year**0.5
    expected, probability = deflated["expected_max"], deflated["probability"]
    if expected is None:
        days = some(deflated["days_apart"], "validation date")
        return [f"Luck cannot be ruled out: the chosen config trades like buy-and-hold on all but {days}."]
    chance = "not known"
    if probability is not None:
        chance = "above 99.9%" if probability > 0.999 else "below 0.1%" if probability < 0.001 else percent(probability)
    return [
        "Sharpe ratio of the chosen config in excess of buy-and-hold on validation: "
        f"{fixed(deflated['sharpe'] * year)} a year; {fixed(expected * year)} for the best of {deflated['trials']:,} "
        f"tries without skill. Probability that it is above zero: {chance}, usual is {percent(SURE, 0)} (deflated; the "
        "choice among epochs is not counted)."
    ]
