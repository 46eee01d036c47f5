"""Is it the same? The largest difference between two arms of one fingerprint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sp500.formatting import gap, percent, some
from sp500.report.plot_style import GREY, SMALL, Bar, draw_bars
from sp500.report.scale.results import compare_errors
from sp500.report.screen.answer import SAME, Answer, Facts, name_size
from sp500.report.screen.timing import pair_trainings
from sp500.runs.compare import relative_gap

LEAST = 1e-4
"""Share below which a difference is written as a power of ten."""


@dataclass(frozen=True)
class Difference:
    """What was compared between arms, how often, and the largest difference."""

    compared: str
    short: str
    count: int
    gap: float
    section: str


def collect(facts: Facts) -> list[Difference]:
    """Return the differences of trainings, of a search's configs and of dataset sizes."""
    return [*_trainings(facts), *_configs(facts), *_sizes(facts)]


def answer(differences: list[Difference]) -> Answer | None:
    """Return the largest difference, and of what it is."""
    if not differences:
        return None
    largest = max(differences, key=lambda item: item.gap)
    of = f"{some(largest.count, 'pair')} with equal settings" if largest.count > 1 else "one pair with equal settings"
    caption = f"Largest difference between arms: {largest.compared}, {of}."
    bars = [Bar(item.short, item.gap / (largest.gap or 1), _text(item.gap), GREY) for item in differences]
    chart = draw_bars("same", bars, caption, width=SMALL)
    number = f"within {_text(largest.gap)}" if largest.gap else "all digits"
    return Answer(SAME, number, caption, largest.section, chart)


def _text(value: float) -> str:
    return percent(value, 2) if value >= LEAST else gap(value)


def _trainings(facts: Facts) -> Iterator[Difference]:
    """Yield trainings alone and on workers, unless all kept the naive forecast, which is the same by construction."""
    gaps = []
    for group in pair_trainings(facts.runs.records):
        losses = [record.best_loss for record in group if record.best_loss is not None and record.best_epoch != 0]
        if len(losses) > 1:
            gaps.append(relative_gap(min(losses), max(losses)))
    if gaps:
        yield Difference("validation losses of one model alone and on Ray", "training", len(gaps), max(gaps), "models")


def _configs(facts: Facts) -> Iterator[Difference]:
    if gaps := facts.search.gaps:
        what = facts.search.measure or "validation loss"
        yield Difference(f"{what} of a config in the search", "search configs", len(gaps), max(gaps), "search")


def _sizes(facts: Facts) -> Iterator[Difference]:
    if gaps := compare_errors(facts.scale.rows):
        size = max(gaps, key=lambda size: gaps[size])
        yield Difference(f"test error on {name_size(size)}", "dataset sizes", len(gaps), gaps[size], "scale")
