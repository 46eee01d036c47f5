"""The sections that list: what runs cost, the data, all runs, those that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500 import formatting
from sp500.report import costs, tables
from sp500.report.costs import Costs
from sp500.report.section import Runs, Section


class CostSection(Section):
    """Costs, and forecasts for more workers."""

    name, title = "cost", "Cost and forecast"

    def collect(self, runs: Runs) -> Costs:
        """Return the costs."""
        return runs.costs

    def sentences(self, found: Costs, runs: Runs) -> list[str]:
        """Return what the runs cost, and how well the forecast did."""
        return costs.sentences(found)

    def parts(self, found: Costs, runs: Runs) -> tuple[Any, ...]:
        """Return tables of the forecasts and remarks on the rates."""
        return costs.parts(found)

    def numbers(self, found: Costs, runs: Runs) -> dict[str, Any]:
        """Return costs and forecasts."""
        return found.numbers


class Listing(Section):
    """A section of tables and remarks, for readers who check the numbers."""

    appendix = True

    def parts(self, found: Sequence[Any], runs: Runs) -> Sequence[Any]:
        """Return what was collected."""
        return found


class DataSection(Listing):
    """The data that runs have read."""

    name = "data"

    def collect(self, runs: Runs) -> Sequence[Any]:
        """Return notes and a card of each dataset."""
        return [*tables.notes(runs.records), *tables.data_cards(runs.records)]


class RunSection(Listing):
    """All runs, and how fast they trained."""

    name = "runs"

    def collect(self, runs: Runs) -> Sequence[Any]:
        """Return the tables."""
        return [tables.runs(runs.records, runs.costs.cells), *tables.throughput(runs.records)] if runs.records else []


class DamagedSection(Section):
    """Runs that cannot be read."""

    name, title = "damaged", "Damaged runs"

    def collect(self, runs: Runs) -> Sequence[str]:
        """Return what is wrong with each."""
        return runs.damaged

    def sentences(self, found: Sequence[str], runs: Runs) -> list[str]:
        """Return how many there are."""
        return [f"Left out as unreadable: {formatting.some(len(found), 'run')}."] if found else []

    def parts(self, found: Sequence[str], runs: Runs) -> Sequence[str]:
        """Return a line for each."""
        return found

    def numbers(self, found: Sequence[str], runs: Runs) -> dict[str, Any]:
        """Return the same."""
        return {"damaged": list(found)} if found else {}
