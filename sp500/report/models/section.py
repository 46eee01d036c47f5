"""The section on models: its sentences, tables and figures, and remarks on runs that have no row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500 import formatting
from sp500.report.models import details, figures, scores, verdicts
from sp500.report.models.results import Group, ModelRow, group_runs, list_without_metrics, make_rows
from sp500.report.section import Runs, Section
from sp500.report.tables import name_runs

GROUPS = 10
"""Sets of test data in detail, those with most models; of the others a line each."""


class ModelSection(Section):
    """Models by what makes their test metrics comparable."""

    name = "models"

    def collect(self, runs: Runs) -> tuple[list[Group], list[ModelRow]]:
        """Return the groups, and rows of runs without test metrics."""
        return group_runs(runs.records, runs.whole), list_without_metrics(runs.records)

    def sentences(self, found: tuple[list[Group], list[ModelRow]], runs: Runs) -> list[str]:
        """Return a sentence per set of test data."""
        return [verdicts.models(group) for group in found[0][:GROUPS]]

    def parts(self, found: tuple[list[Group], list[ModelRow]], runs: Runs) -> tuple[Any, ...]:
        """Return a table and figures per set of test data, the spread over seeds, and what is left out."""
        drawn = [
            (
                scores.comparison(group, runs.costs.cells),
                scores.rivals(group),
                *details.list_parts(group, runs.importance),
                figures.improvements(group),
                figures.curves(group, runs.epochs),
                figures.measures(group, runs.epochs),
                figures.growth(group),
                figures.confusion(group),
                _sample(group),
                *(verdicts.tries(row["name"], row["elsewhere"]) for row in group.models if row["elsewhere"]),
            )
            for group in found[0][:GROUPS]
        ]
        rest = found[0][GROUPS:]
        seeds = scores.seeds_table(runs.records)
        shown = [part for parts in drawn for part in parts if part is not None]
        return (
            *shown,
            *([scores.summarize(rest)] if rest else []),
            *([seeds] if seeds else []),
            *_list_left_out(*found),
        )

    def numbers(self, found: tuple[list[Group], list[ModelRow]], runs: Runs) -> dict[str, Any]:
        """Return each model's row, and importances by run."""
        return {"models": make_rows(*found), **({"importance": dict(runs.importance)} if runs.importance else {})}


def _sample(group: Group) -> str | None:
    """Return a text that the best model wrote; None if it writes none."""
    best = next((row for row in group.models if row["test"].get("sample")), None)
    if best is None:
        return None
    return f"{best['name']} continues the test text with: {' '.join(best['test']['sample'].split())}"


def _list_left_out(groups: Sequence[Group], unjudged: Sequence[ModelRow]) -> list[str]:
    """Return remarks on runs that have no row, so that none is missing in silence."""
    replaced = [name for group in groups for row in group.models for name in row["replaces"]]
    remarks = []
    if unjudged:
        endings: dict[str, list[str]] = {}
        for row in reversed(unjudged):
            endings.setdefault(formatting.outcome(row["status"]), []).append(row["run"])
        counts = [f"{len(names):,} {word} ({name_runs(names)})" for word, names in endings.items()]
        count = formatting.some(len(unjudged), "run")
        remarks.append(
            f"{count} ended without test metrics: {formatting.join(counts)}. The table under Runs has the reasons."
        )
    if replaced:
        older = formatting.some(len(replaced), "older run")
        remarks.append(f"{older} with the same settings left out for a newer one: {name_runs(replaced)}.")
    return remarks
