"""The section on scale experiments: its sentences, figures and tables."""

from __future__ import annotations

from typing import Any

from sp500.report.scale import figures, verdicts
from sp500.report.scale.results import Scale, collect, tables
from sp500.report.screen.timing import time_sizes
from sp500.report.section import Runs, Section


class ScaleSection(Section):
    """Growing datasets, with and without Ray."""

    name = "scale"

    def collect(self, runs: Runs) -> Scale:
        """Return the measurements."""
        return collect(runs.records)

    def lead(self, found: Scale, runs: Runs) -> str:
        """Return what the largest size that both trained on took, with Ray and without it."""
        timing = next(time_sizes(found), None)
        return f"On Ray: {timing.clause()}." if timing else next(iter(self.sentences(found, runs)), "")

    def sentences(self, found: Scale, runs: Runs) -> list[str]:
        """Return what streaming and the cluster bought; nothing if nothing was measured."""
        return verdicts.sentences(found)

    def parts(self, found: Scale, runs: Runs) -> tuple[Any, ...]:
        """Return figures, and tables with their costs."""
        return (*figures.figures(found), *tables(found, runs.costs.cells)) if found.rows else ()

    def numbers(self, found: Scale, runs: Runs) -> dict[str, Any]:
        """Return the measurements, and what was computed of them."""
        return found.numbers
