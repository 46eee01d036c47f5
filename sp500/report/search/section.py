"""The section on searches: its sentences, figures and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sp500.report import costs
from sp500.report.costs import Costs
from sp500.report.search import arms, figures, results, samplers, tables, verdicts
from sp500.report.search.results import Search, newest
from sp500.report.section import Folded, Runs, Section
from sp500.report.tables import list_earlier

NOUNS = ("search", "searches")


class SearchSection(Section):
    """The newest search, and the samplers of all."""

    name = "search"

    def collect(self, runs: Runs) -> Search:
        """Return the newest search with all its arms."""
        found = newest(runs.records, runs.trials)
        return replace(found, record=found.record and runs.whole(found.record))

    def lead(self, found: Search, runs: Runs) -> str:
        """Return the chosen config."""
        chosen = next(iter(verdicts.best(found)), "")
        return verdicts.find_suspects(found.record) + chosen if found.record else ""

    def sentences(self, found: Search, runs: Runs) -> list[str]:
        """Return what the newest search found."""
        return verdicts.sentences(found)

    def parts(self, found: Search, runs: Runs) -> tuple[Any, ...]:
        """Return tables of the arms, figures and tables of the trials, and the samplers.

        Of runs that the user chose every earlier search follows, folded.
        """
        methods = samplers.methods(runs.records)
        if not runs.chosen:
            earlier = list_earlier(found.record.name, found.earlier, NOUNS) if found.record else []
            return (*earlier, *_detail(found, runs.costs), *methods)
        searches = [results.find(runs.records, runs.trials, name) for name in found.earlier]
        folded = [
            Folded(search.name, (*verdicts.sentences(search), *_detail(search, runs.costs))) for search in searches
        ]
        return (*_detail(found, runs.costs), *folded, *methods)

    def numbers(self, found: Search, runs: Runs) -> dict[str, Any]:
        """Return how its arms compare."""
        return {"search": found.numbers}


def _detail(search: Search, paid: Costs) -> tuple[Any, ...]:
    if search.record is None:
        return ()
    priced = costs.search_table(paid, {side.name: side.record for side in search.sides})
    breaks = arms.break_even_table(search.compared)
    shown = (arms.arms_table(search.compared, search.arm_names), *[extra for extra in (breaks, priced) if extra])
    return (*shown, *figures.figures(search), *tables.tables(search))
