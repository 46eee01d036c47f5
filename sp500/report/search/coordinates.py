"""Parallel coordinates: every trial of a search as a line through its settings to its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from sp500 import formatting
from sp500.report.plot_style import BLUE, GREY, INK, MUTED, PLAIN, RULE, WIDE, Figure, apply_style, render
from sp500.report.search.hyperparameters import Setting, Trial, ceiling, drop_failed, label, list_varied, names
from sp500.report.search.results import NAIVE, Search

AXES, BEST, LINES = 8, 10, 300
"""Axes with that of the loss, trials that are highlighted, and trials that are drawn, at most."""
APART = 0.055
"""Values closer than this share of an axis do not both get a label."""


@apply_style()
def coordinates(search: Search) -> Figure | None:
    """Draw parallel coordinates: a line per trial over the varied settings to its loss, the best ones on top."""
    trials = sorted(drop_failed(search.trials), key=lambda trial: (trial.loss, trial.id))
    settings = _choose(search, list_varied(trials))
    losses = [trial.loss for trial in trials]
    if not settings or len(set(losses)) < 2:
        return None
    shown, titles, top = trials[:LINES], names(settings), ceiling(losses)
    chart = Canvas(figsize=(WIDE, 3.6))
    chart.subplots_adjust(0.075, 0.03, 0.925, 1 - 0.6 / 3.6)
    axes = chart.subplots()
    axes.set(xlim=(0, len(settings)), ylim=(-0.03, 1.03), xticks=[], yticks=[])
    axes.spines["bottom"].set_visible(False)
    _lines(axes, shown, settings, top)
    for place, setting in enumerate(settings):
        _scale(axes, place, titles[setting.key] + ("\nlog scale" if setting.log else ""), _labels(setting))
    _scale(axes, len(settings), search.loss.replace(" /", "\n/"), _loss_labels(losses, top))
    blue = f"the {_best(trials)} best in blue, the best of all in bold" if _best(trials) > 1 else "the best in blue"
    caption = (
        f"Every trial as a line through its settings to its {search.loss_name}: {blue}. Values crossed by many blue "
        "lines did well."
    )
    caption += NAIVE if search.relative else ""
    if len(shown) < len(trials):
        caption += f" The {len(shown)} best of {len(trials):,}."
    every = len(list_varied(trials))
    if len(settings) < every:
        caption += f" {len(settings)} of {every} settings that varied."
    return render(chart, f"coordinates-{search.name}", caption)


def _lines(axes: Axes, trials: Sequence[Trial], settings: Sequence[Setting], top: float) -> None:
    low = trials[0].loss
    paths = []
    for trial in trials:
        heights = [setting.place(trial.overrides.get(setting.key)) for setting in settings]
        heights.append((min(trial.loss, top) - low) / (top - low))
        paths.append(list(enumerate(heights)))
    best = _best(trials)
    # The best are drawn last, so that they lie on top.
    for part, color, width in ((paths[best:], GREY, 0.7), (paths[1:best], BLUE, 1.3), (paths[:1], BLUE, 3.2)):
        alpha = 0.6 if color == GREY else 1.0
        axes.add_collection(LineCollection(part[::-1], colors=color, linewidths=width, alpha=alpha))


def _best(trials: Sequence[Any]) -> int:
    """Return how many are highlighted: few enough to stand out."""
    return min(BEST, max(1, len(trials) // 3))


def _choose(search: Search, settings: list[Setting]) -> list[Setting]:
    """Return the settings that fit: the most important if that is known."""
    if isinstance(search.importance, str):
        return settings[: AXES - 1]
    important = list(search.importance)[: AXES - 1]
    return [setting for setting in settings if setting.key in important]


def _scale(axes: Axes, place: int, title: str, labels: Sequence[tuple[float, str]]) -> None:
    last = place == int(axes.get_xlim()[1])
    side = "left" if not place else "right" if last else "center"
    axes.axvline(place, ymin=0.03, ymax=0.97, color=RULE, linewidth=1.0, zorder=0, clip_on=False)
    axes.text(place, 1.24, title, ha=side, va="top", color=INK)
    for height, text in labels:
        axes.plot([place], [height], "_", color=MUTED, markersize=7, zorder=3)
        axes.annotate(
            text,
            (place, height),
            xytext=(7 if last else -7, 0),
            textcoords="offset points",
            ha="left" if last else "right",
            va="center",
            color=INK,
            fontsize=8.5,
            bbox=PLAIN,
            zorder=4,
        )


def _labels(setting: Setting) -> list[tuple[float, str]]:
    """Return heights and texts of a setting's values: all if they are few, else round ones."""
    if len(setting.values) <= 6 or not setting.numeric:
        return _drop_overlapping([(setting.place(value), label(value)) for value in setting.values])
    low, high = setting.values[0], setting.values[-1]
    if setting.log:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        values = [10.0**power for power in powers]
    else:
        values = [float(value) for value in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    inside = [(setting.place(value), label(value)) for value in values if low <= value <= high]
    return _drop_overlapping([(0.0, label(float(low))), (1.0, label(float(high))), *inside])


def _drop_overlapping(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return labels without those that would overlap an earlier one."""
    apart: list[tuple[float, str]] = []
    for height, text in labels:
        if all(abs(height - other) > APART for other, _ in apart):
            apart.append((height, text))
    return apart


def _loss_labels(losses: Sequence[float], top: float) -> list[tuple[float, str]]:
    low = min(losses)
    ticks = [float(value) for value in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, top)]
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    edge = f"{formatting.fixed(top, digits + 1)} or more" if max(losses) > top else formatting.fixed(top, digits + 1)
    inside = [((value - low) / (top - low), formatting.fixed(value, digits)) for value in ticks if low <= value <= top]
    return _drop_overlapping([(1.0, edge), (0.0, formatting.fixed(low, digits + 1)), *inside])
