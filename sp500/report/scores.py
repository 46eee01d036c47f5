"""Models and naive forecasts side by side, as tables.

A metric's column appears when one of the rows has it, which gives every task its own columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sp500.report import words
from sp500.report.models import Group
from sp500.report.tables import Cells, Table, no_cells, table
from sp500.report.words import NOTHING, TIMES, fixed, percent

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "r2": ("R²", partial(fixed, digits=4)),
    "directional_accuracy": ("Right direction", percent),
    "information_coefficient": ("IC", partial(fixed, digits=3)),
    "accuracy": ("Accuracy", percent),
    "precision": ("Precision", percent),
    "recall": ("Recall", percent),
    "f1": ("F1", partial(fixed, digits=3)),
    "roc_auc": ("ROC-AUC", partial(fixed, digits=3)),
    "best_possible_accuracy": ("Best possible", percent),
    "sharpe": ("Sharpe", fixed),
    "sharpe_after_cost": ("Net Sharpe", fixed),
    "turnover": ("Turnover", fixed),
}
Metric = tuple[str, str, Callable[[Any], str]]
"""Title, key and format."""
SCALED = {"mse": "MSE", "mae": "MAE"}


def comparison(group: Group, more: Cells = no_cells) -> Table:
    """One group: models, best first, and the naive forecasts beneath; `more` gives further columns by run."""
    rows = [*group.models, *group.naive]
    metrics = columns([row["test"] for row in rows])
    judged = any(row["improvement"] for row in rows)
    lines = []
    for row in rows:
        naive = row["kind"] == "naive"
        line = {"Model": words.naive_name(row["name"], group.task) if naive else row["name"]}
        line |= _improvement(row["improvement"]) if judged else {}
        line |= {title: show(row["test"].get(key)) for title, key, show in metrics}
        line |= more(row["run"])
        lines.append(line | {"Run": NOTHING if naive else f"{row['run']} ({_arm(row)})"})
    kinds = ["naive" if row["kind"] == "naive" else "" for row in rows]
    return table(_caption(group), lines, text=("Model", "Verdict", "Run"), kinds=kinds, note=_note(group, metrics))


def columns(tests: list[dict[str, Any]]) -> list[Metric]:
    """Title, key and format of every metric that some row has."""
    shown: list[Metric] = []
    for key, title in SCALED.items():
        if values := [abs(test[key]) for test in tests if test.get(key)]:
            power = math.floor(math.log10(min(values)))
            # Squared daily returns are about 1e-4: without their unit all would read 0.0002.
            unit, power = (f" (10{str(power).translate(SUPERSCRIPTS)})", power) if abs(power) > 1 else ("", 0)
            shown.append((title + unit, key, partial(_in_unit, power=power)))
    shown += [
        (title, key, show) for key, (title, show) in METRICS.items() if any(test.get(key) is not None for test in tests)
    ]
    if any(len(test.get("confusion_matrix") or ()) == 2 for test in tests):
        shown.append(("TN/FP/FN/TP", "confusion_matrix", _confusion))
    return shown


def _in_unit(value: float | None, power: int) -> str:
    return NOTHING if value is None else fixed(value / 10.0**power, 3)


def _confusion(matrix: list[list[int]] | None) -> str:
    return "/".join(str(count) for row in matrix for count in row) if matrix else NOTHING


def _improvement(found: dict[str, Any] | None) -> dict[str, str]:
    found = found or {}
    verdict, value = words.against_naive(found), percent(found.get("value"), 2, sign=True)
    ends = " to ".join(fixed(100 * (found.get(end) or 0), 2, sign=True) for end in ("low", "high"))
    return {
        "Against naive": value,
        "95% interval, %": NOTHING if verdict == NOTHING else ends,
        "Verdict": verdict,
    }


def _caption(group: Group) -> str:
    span = group.newest.data.get("splits", {}).get("test", ())
    count = group.newest.metrics["test"].get("samples")
    windows = f"{count:,} test windows" if count else ""
    return ", ".join(filter(None, (group.subject, " to ".join(map(str, span)), windows)))


def _note(group: Group, metrics: list[Metric]) -> str:
    """What the columns mean that a newcomer may not know, of those shown."""
    keys = {key for _, key, _ in metrics}
    said = ["IC: rank correlation of forecast and return."] if "information_coefficient" in keys else []
    if "sharpe" in keys:
        cost = words.setting(group.newest.config.get("eval", {}).get("cost_bps"))
        said.append(
            f"Sharpe: annualised, of trading the forecast's sign; net of {cost} bp per unit of turnover, the "
            "mean share of the capital traded a day."
        )
    return " ".join(said)


def _arm(row: dict[str, Any]) -> str:
    workers = f" {TIMES}{row['num_workers']}" if row["num_workers"] else ""
    state = "" if row["status"] == "ok" else f", {words.ended(row['status'])}"
    return f"{words.arm(row['arm'])}{workers}{state}"
