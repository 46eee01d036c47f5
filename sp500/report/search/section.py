"""The section on searches: its sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500.report import costs
from sp500.report.costs import Costs
from sp500.report.search import arms, figures, samplers, tables, verdicts
from sp500.report.search.results import Search
from sp500.report.tables import list_earlier
from sp500.runs.record import RunRecord


def search_sentences(search: Search, records: Sequence[RunRecord]) -> list[str]:
    """What the newest search found, and how the samplers of all searches compare."""
    return [*verdicts.sentences(search), *samplers.verdicts(records)]


def search_parts(search: Search, records: Sequence[RunRecord], paid: Costs) -> tuple[Any, ...]:
    """Tables of the arms, figures and tables of the trials, and the samplers."""
    return (*_newest(search, paid), *samplers.methods(records))


def _newest(search: Search, paid: Costs) -> tuple[Any, ...]:
    if search.record is None:
        return ()
    priced = costs.search_table(paid, {side.name: side.record for side in search.sides})
    breaks = arms.break_even_table(search.compared)
    shown = (arms.arms_table(search.compared), *[extra for extra in (breaks, priced) if extra])
    earlier = list_earlier(search.record.name, search.earlier, ("search", "searches"))
    return (*earlier, *shown, *figures.figures(search), *tables.tables(search))
