"""Models, naive forecasts and buy-and-hold side by side, as tables.

A metric's column appears when one of the rows has it, which gives every task its own columns; last come numbers by
names that only a user's task knows. A metric with a 95% interval shows it in the same cell, here as in the terminal:
`text`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any

from sp500 import formatting
from sp500.formatting import KEPT, METRIC, NOTHING, TIMES, fixed, percent
from sp500.report.models.results import Group, ModelRow, NaiveRow
from sp500.report.tables import Cells, Table, no_cells, table
from sp500.runs.record import RunRecord
from sp500.runs.results import Improvement, Metrics

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "r2": ("R²", partial(fixed, digits=4)),
    "directional_accuracy": ("Right direction", percent),
    "information_coefficient": ("IC", partial(fixed, digits=3)),
    "daily_ic": ("Daily IC", partial(fixed, digits=3)),
    "accuracy": ("Accuracy", percent),
    "precision": ("Precision", percent),
    "recall": ("Recall", percent),
    "f1": ("F1", partial(fixed, digits=3)),
    "roc_auc": ("ROC-AUC", partial(fixed, digits=3)),
    "brier": ("Brier", partial(fixed, digits=4)),
    "qlike": ("QLIKE", partial(fixed, digits=3)),
    "bits_per_byte": ("Bits per byte", partial(fixed, digits=3)),
    "perplexity": ("Perplexity", partial(fixed, digits=2)),
    "best_possible_accuracy": ("Best possible", percent),
    # The ratio before costs and the log loss are in report.json: with them the tables are too wide to read.
    "sharpe_after_cost": ("Net Sharpe", fixed),
    "turnover": ("Turnover", fixed),
}
LEFT_OUT = {"sharpe": "sharpe_after_cost", "log_loss": "brier", "loss": "bits_per_byte", "bytes": "bits_per_byte"}
"""Numbers of the built-in tasks without a column, and the metric by which such a task is known."""
MODELS = 200
"""Models in a table; the rest are in report.json."""
SCALED = {"mse": "MSE", "mae": "MAE"}


@dataclass(frozen=True)
class Metric:
    """A column of metrics: its title, its key in the metrics of a row, and the format of one number."""

    title: str
    key: str
    number: Callable[[Any], str]

    def text(self, test: Mapping[str, Any]) -> str:
        """Return the cell of a row: the number, with its 95% interval or t statistic if the row has one."""
        number = self.number(test.get(self.key))
        if ends := test.get(f"{self.key}_interval"):
            return f"{number} ({formatting.interval(ends)})"
        if (statistic := test.get(f"{self.key}_t")) is not None:
            return f"{number} (t {fixed(statistic, 1)})"
        return number


def comparison(group: Group, more: Cells = no_cells) -> Table:
    """Return a table of one group: models, best first, naive forecasts, buy-and-hold.

    `more` gives further columns by run.
    """
    rows: list[ModelRow | NaiveRow] = [*group.models[:MODELS], *group.naive]
    metrics = columns([row["test"] for row in rows])
    judged = any(row["improvement"] for row in rows)
    lines = []
    for row in rows:
        naive = row["kind"] == "naive"
        line = {"Model": group.kind.name_naive(row["name"]) if naive else row["name"]}
        line |= _improvement(row["improvement"], group.naive_epoch(row)) if judged else {}
        line |= {metric.title: metric.text(row["test"]) for metric in metrics}
        line |= more(row["run"])
        lines.append(line | {"Run": f"{row['run']} ({_arm(row)})" if row["kind"] == "model" else NOTHING})
    kinds = ["naive" if row["kind"] == "naive" else "" for row in rows]
    return table(_caption(group), lines, text=("Model", "Verdict", "Run"), kinds=kinds, note=_note(group, metrics))


def summarize(groups: Sequence[Group]) -> Table:
    """Return a line per group: its best model against the naive forecast."""
    lines = [
        {"Test": _caption(group), "Models": f"{len(group.models):,}", "Best": best["name"]}
        | _improvement(best["improvement"], group.naive_epoch(best))
        for group in groups[:MODELS]
        for best in group.models[:1]
    ]
    cut = f" {MODELS} of {len(groups):,}." if len(groups) > MODELS else ""
    note = f"Those with fewer models than the tests above.{cut} report.json has all their models."
    return table(f"{len(groups):,} other sets of test data", lines, text=("Test", "Best", "Verdict"), note=note)


def rivals(group: Group) -> Table | None:
    """Return the best model's improvement over each naive forecast, where its task judges it by several losses."""
    best = next((row for row in group.models if row["test"].get("against")), None)
    if best is None:
        return None
    lines = []
    for name, gains in best["test"]["against"].items():
        cells = {
            f"{metric.upper()} lower by": f"{percent(gain['value'], sign=True)} ({formatting.bounds_percent(gain)})"
            for metric, gain in gains.items()
        }
        lines.append({"Naive forecast": group.kind.name_naive(name), **cells})
    note = "With 95% intervals for this test set. An interval that holds zero is a tie."
    return table(f"{best['name']} against each naive forecast", lines, text=("Naive forecast",), note=note)


def seeds_table(records: Sequence[RunRecord]) -> Table | None:
    """Return a row per run with several seeds: how far its test metrics spread when only the seed changes."""
    lines = []
    for record in records:
        tests = [seed["test"] for seed in record.seeds or ()]
        if not tests:
            continue
        gains = [test["improvement"]["value"] for test in tests if test.get("improvement")]
        unchanged = sum(seed["best_epoch"] == 0 for seed in record.seeds or ())
        lines.append(
            {
                "Run": record.name,
                "Seeds": str(len(tests)),
                "Against naive": _spread([100 * gain for gain in gains if gain is not None], "%"),
                "Net Sharpe": _spread([test["sharpe_after_cost"] for test in tests if test.get("sharpe_after_cost")]),
                "Kept the naive forecast": str(unchanged),
            }
        )
    note = "Mean and standard deviation over seeds, with the range. The other tables show the first seed."
    return table("Spread over seeds", lines, text=("Run",), note=note) if lines else None


def _spread(values: Sequence[float], unit: str = "") -> str:
    if len(values) < 2:
        return NOTHING
    ends = f"{fixed(min(values), sign=True)} to {fixed(max(values), sign=True)}"
    return f"{fixed(fmean(values), sign=True)}{unit} ± {fixed(stdev(values))} ({ends})"


def columns(tests: Sequence[Metrics]) -> list[Metric]:
    """Return every metric that some row has."""
    shown: list[Metric] = []
    for key, title in SCALED.items():
        if values := [abs(test[key]) for test in tests if test.get(key)]:
            # Squared daily returns are about 1e-4: without their unit all would read 0.0002. Only even powers, so that
            # one unit serves all years.
            power = 2 * round(math.log10(min(values)) / 2)
            unit, power = (f" (10{str(power).translate(SUPERSCRIPTS)})", power) if abs(power) > 1 else ("", 0)
            shown.append(Metric(title + unit, key, partial(_in_unit, power=power)))
    present = {key for test in tests for key, value in test.items() if value is not None}
    shown += [Metric(title, key, number) for key, (title, number) in METRICS.items() if key in present]
    if any(len(test.get("confusion_matrix") or ()) == 2 for test in tests):
        shown.append(Metric("TN/FP/FN/TP", "confusion_matrix", _confusion))
    return shown + [Metric(key, key, _plain) for key in own_names(tests)]


def own_names(tests: Sequence[Metrics]) -> list[str]:
    """Return names of the plain numbers that no built-in task gives, in the order of the task."""
    known = {key for test in tests for key in test}
    flat = (item for test in tests for item in test.items())
    numbers = (key for key, value in flat if isinstance(value, int | float) and not isinstance(value, bool))
    return [
        key
        for key in dict.fromkeys(numbers)
        if key not in {*SCALED, *METRICS, "samples"}
        and LEFT_OUT.get(key) not in known
        and not (key.endswith("_t") and key[:-2] in known)
    ]


def _plain(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:{',' if isinstance(value, int) else ',.4g'}}".replace("-", formatting.MINUS)


def _in_unit(value: float | None, power: int) -> str:
    return NOTHING if value is None else fixed(value / 10.0**power, 3)


def _confusion(matrix: list[list[int]] | None) -> str:
    return "/".join(str(count) for row in matrix for count in row) if matrix else NOTHING


def _improvement(gain: Improvement | None, best_epoch: int | None) -> dict[str, str]:
    return {
        "Against naive": percent(gain["value"] if gain else None, 2, sign=True),
        "95% interval, %": formatting.bounds_percent(gain),
        "Verdict": formatting.against_naive(gain, best_epoch),
    }


def _caption(group: Group) -> str:
    span = group.newest.data.get("splits", {}).get("test", ())
    count = group.newest.metrics["test"].get("samples")
    windows = f"{count:,} test windows" if count else ""
    return ", ".join(filter(None, (group.subject, " to ".join(map(str, span)), windows)))


def _note(group: Group, metrics: list[Metric]) -> str:
    """Return a note on the shown columns whose meaning a newcomer may not know."""
    keys = {metric.key for metric in metrics}
    gains = [gain for row in group.models if (gain := row["improvement"])]
    remarks = explain_improvement(gains, starts_naive=group.kind.from_prices)
    if any(formatting.bounds(gain) for gain in gains):
        dates = ", whose volatility other dates may not have" if group.kind.from_prices else ""
        remarks.append(f"95% intervals are for this test set{dates}: Newey-West standard errors and Student's t.")
    remarks += cut_models(group)
    if "information_coefficient" in keys:
        remarks.append("IC: rank correlation of forecast and return.")
    if "daily_ic" in keys:
        remarks.append("Daily IC: mean over the dates of the rank correlation across tickers.")
    if "qlike" in keys:
        remarks.append("QLIKE: y/f - log(y/f) - 1 of variances; forecasts are made unbiased on the validation dates.")
    if "brier" in keys:
        remarks.append("Brier score of the majority class: that of the training share of ups.")
    if "sharpe_after_cost" in keys:
        remarks.append(sharpe_note(group.newest.config))
    return " ".join(remarks)


def cut_models(group: Group) -> list[str]:
    """Return the remark of a table that has only the best models; none if it has all."""
    count = len(group.models)
    return [f"The {MODELS} best of {count:,} models; report.json has all."] if count > MODELS else []


def explain_improvement(gains: Sequence[Improvement], *, starts_naive: bool) -> list[str]:
    """Return what the columns on the improvement mean; `starts_naive`: training starts from a naive forecast."""
    if not gains:
        return []
    metric = METRIC.get(gains[0]["metric"], "test error")
    lines = [f"Against naive: by how many percent the model's {metric} is below that of the best naive forecast."]
    if any(map(formatting.bounds, gains)):
        kept = f"; {KEPT}: no epoch lowered the validation loss of the naive forecast that training starts from"
        lines.append(
            "Verdict: better or worse where the interval lies on one side of zero, unclear where it holds zero"
            f"{kept if starts_naive else ''}."
        )
    return lines


def sharpe_note(config: Mapping[str, Any]) -> str:
    """Return what the columns of Sharpe ratios mean."""
    horizon = int(config.get("data", {}).get("horizon", 1))
    cost = formatting.setting(config.get("eval", {}).get("cost_bps"))
    which = "each day's forecast" if horizon == 1 else "the forecast"
    days = "" if horizon == 1 else f" every {horizon} days, averaged over the {horizon} possible first days"
    return (
        f"Net Sharpe: annualised, of trading the sign of {which}{days}, after {cost} bp per unit of turnover, with "
        "its 95% interval. Turnover: mean share of the capital traded per date. Buy-and-hold: always long."
    )


def _arm(row: ModelRow) -> str:
    workers = f" {TIMES}{row['num_workers']}" if row["num_workers"] else ""
    state = "" if row["status"] == "ok" else f", {formatting.outcome(row['status'])}"
    return f"{formatting.arm(row['arm'])}{workers}{state}"
