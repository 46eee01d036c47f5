"""The section on scale experiments: its sentences, figures and tables."""

from __future__ import annotations

from typing import Any

from sp500.report.costs import Costs
from sp500.report.scale import figures, verdicts
from sp500.report.scale.results import Scale, tables

COPIES = (
    "A multiplied dataset is the original history and noisy copies of it. It has more work, not more information: its "
    "test metrics may be worse than those of the original."
)


def scale_sentences(scale: Scale, paid: Costs) -> list[str]:
    """What streaming and the cluster bought; nothing where nothing was measured."""
    return verdicts.sentences(scale, paid.cost_text)


def scale_parts(scale: Scale, paid: Costs) -> tuple[Any, ...]:
    """Figures, tables with their costs, and a remark on multiplied datasets."""
    return (*figures.figures(scale), *tables(scale, paid.cells), COPIES) if scale.rows else ()
