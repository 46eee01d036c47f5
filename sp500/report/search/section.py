"""The section on searches: its sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500.report import costs
from sp500.report.costs import Costs
from sp500.report.search import arms, figures, samplers, tables, verdicts
from sp500.report.search.results import Search
from sp500.runs.record import RunRecord


def search_sentences(found: Search, records: Sequence[RunRecord]) -> list[str]:
    """What the newest search found, and how the samplers of all searches compare."""
    return [*verdicts.sentences(found), *samplers.verdicts(records)]


def search_parts(found: Search, records: Sequence[RunRecord], paid: Costs) -> tuple[Any, ...]:
    """Tables of the arms, figures and tables of the trials, and the samplers."""
    return (*_newest(found, paid), *samplers.methods(records))


def _newest(found: Search, paid: Costs) -> tuple[Any, ...]:
    if found.told is None:
        return ()
    priced = costs.search_table(paid, {side.name: side.record for side in found.sides})
    breaks = arms.break_even_table(found.compared)
    shown = (arms.arms_table(found.compared), *[one for one in (breaks, priced) if one])
    return (*shown, *figures.figures(found), *tables.tables(found))
