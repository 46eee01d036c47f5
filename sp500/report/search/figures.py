"""Figures of a search: its seconds, its history, the settings that did well and those that mattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullFormatter

from sp500 import formatting
from sp500.report.plot_style import (
    BLUE,
    COLORS,
    GREY,
    INK,
    ORANGE,
    WIDE,
    WIDTH,
    Bar,
    Figure,
    Look,
    apply_style,
    draw_bars,
    render,
)
from sp500.report.search.hyperparameters import Setting, ceiling, drop_failed, label, list_varied, names
from sp500.report.search.results import NAIVE, Search, Side

FAILED = "failed"
PANELS, ACROSS, BEST, FEW = 8, 4, 10, 5
"""Settings that are drawn, panels in a row, trials that are highlighted, and values that are ticks, at most."""
LOOKS: dict[str, Look] = {
    "sequential": {"marker": "o", "markerfacecolor": "none", "markersize": 5.5},
    "packed": {"marker": "s", "markersize": 3.5},
    "parallel": {"marker": "s", "markersize": 3.5},
    "ray": {"marker": "o", "markersize": 4},
}


def figures(search: Search) -> list[Figure | str]:
    """Return the figures of the search, and a remark in place of an importance that cannot be known."""
    drawings = (
        history(search),
        settings(search),
        importance(search),
    )
    shown: list[Figure | str] = [drawing for drawing in drawings if drawing is not None]
    if isinstance(search.importance, str) and search.trials:
        shown.append(f"How much each setting mattered is not shown: {search.importance}.")
    return shown


@apply_style()
def history(search: Search) -> Figure | None:
    """Draw the validation loss of every trial in time, and the best so far as a line."""
    sides = [side for side in search.sides if drop_failed(list(side.trials.values()))]
    if not sides:
        return None
    elapsed = [side.elapsed for side in sides]
    clock = None if None in elapsed else max(at for times in elapsed if times for at in times.values())
    unit, name = _unit(clock) if clock is not None else (1.0, "")
    losses = [trial.loss for side in sides for trial in drop_failed(list(side.trials.values()))]
    low, top = min(losses), ceiling(losses)
    chart = Canvas(figsize=(WIDTH, 3.1))
    chart.subplots_adjust(0.075, 0.46 / 3.1, 0.99, 1 - 0.42 / 3.1)
    axes = chart.subplots()
    for side, times in zip(sides, elapsed, strict=True):
        numbers = {key: float(number) for number, key in enumerate(side.trials, 1)}
        places = {key: at / unit for key, at in times.items()} if times and clock is not None else numbers
        _trials(axes, side, places, top)
    room = 0.06 * (top - low) or 0.01 * abs(low) or 1.0
    axes.set(ylim=(low - room, top + 2.5 * room), ylabel=search.loss)
    axes.set_xlabel(
        "trials, in the order in which they ended" if clock is None else f"{name} since the first trial began"
    )
    if clock is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="y")
    marks, texts = axes.get_legend_handles_labels()
    legend = dict(sorted(zip(texts, marks, strict=True), key=lambda pair: pair[0] == FAILED))
    axes.legend(legend.values(), legend, loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=4, borderaxespad=0.2)
    caption = _describe(search, sides, losses, top) + (NAIVE if search.relative else "")
    caption += f" Validation loss: {search.loss_definition}" if search.loss_definition and not search.measure else ""
    return render(chart, f"history-{search.name}", caption)


@apply_style()
def settings(search: Search) -> Figure | None:
    """Draw small multiples: the loss of every trial against each setting that varied, the best trials in blue."""
    trials = sorted(drop_failed(search.trials), key=lambda trial: (-trial.loss, trial.id))
    losses, varied = [trial.loss for trial in trials], list_varied(trials)
    if not varied or len(set(losses)) < 2:
        return None
    shown = _choose(search, varied)
    across = min(ACROSS, len(shown))
    down, best = -(-len(shown) // across), min(BEST, max(1, len(trials) // 3))
    height = 0.35 + 1.6 * down
    chart = Canvas(figsize=(WIDE, height))
    chart.subplots_adjust(0.06, 0.25 / height, 0.995, 1 - 0.25 / height, hspace=0.6, wspace=0.25)
    titles = names(varied)
    for place, setting in enumerate(shown):
        axes = chart.add_subplot(down, across, place + 1)
        values: list[Any] = [trial.overrides.get(setting.key) for trial in trials]
        axes.scatter(
            values if setting.numeric else list(map(label, values)),
            [min(loss, ceiling(losses)) for loss in losses],
            color=[GREY] * (len(trials) - best) + [BLUE] * best,
            s=14,
        )
        axes.set_title(titles[setting.key], loc="left", fontsize=9, color=INK)
        axes.grid(axis="y")
        if setting.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        if setting.numeric and len(setting.values) <= FEW:
            axes.set_xticks(setting.values, list(map(label, setting.values)))
    caption = f"{_capitalise(search.loss_name)} of every trial by its settings, the {best} best in blue."
    caption += NAIVE if search.relative else ""
    if len(shown) < len(varied):
        caption += f" {len(shown)} of {len(varied)} settings that varied."
    return render(chart, f"trials-{search.name}", caption)


def _choose(search: Search, varied: list[Setting]) -> list[Setting]:
    """Return the settings that fit: the most important if that is known."""
    if isinstance(search.importance, str):
        return varied[:PANELS]
    important = list(search.importance)[:PANELS]
    return [setting for setting in varied if setting.key in important]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def importance(search: Search) -> Figure | None:
    """Draw the share of each setting in the variation of the loss, as bars."""
    if isinstance(search.importance, str):
        return None
    finished = drop_failed(search.trials)
    short = names(list_varied(finished))
    bars = [
        Bar(short[key], share, "<1%" if share < 0.01 else formatting.percent(share, 0), BLUE)
        for key, share in search.importance.items()
    ]
    caption = (
        f"Importance: how much of the variation of the {search.loss_name} over {len(finished):,} trials each "
        "setting explains (Optuna's fANOVA), in shares of what all explain."
    )
    return draw_bars(f"settings-{search.name}", bars, caption)


def _trials(axes: Axes, side: Side, places: dict[str, float], top: float) -> None:
    """Draw a mark per trial, outliers on the edge at `top`, failed ones above it; the best so far as a step line."""
    look = LOOKS[side.record.arm] | {"color": COLORS[side.record.arm]}
    good = {trial.id: trial.loss for trial in drop_failed(list(side.trials.values()))}
    far = {key for key, loss in good.items() if loss > top}
    near = [key for key in good if key not in far]
    axes.plot([places[key] for key in near], [good[key] for key in near], linestyle="none", label=side.name, **look)
    axes.plot([places[key] for key in far], [top] * len(far), linestyle="none", **look | {"marker": "^"})
    best = np.minimum.accumulate(list(good.values()))
    end = max(places.values())
    axes.step([*(places[key] for key in good), end], [*best, best[-1]], where="post", color=look["color"])
    if failed := [places[key] for key in side.trials if key not in good]:
        edge = axes.get_xaxis_transform()
        look = {"marker": "x", "color": ORANGE, "markersize": 6, "markeredgewidth": 1.6, "linestyle": "none"}
        axes.plot(failed, [0.965] * len(failed), transform=edge, label=FAILED, **look)


def _describe(search: Search, sides: Sequence[Side], losses: Sequence[float], top: float) -> str:
    two = " of each arm" if len(sides) > 1 else ""
    far = sum(loss > top for loss in losses)
    edge = f" A triangle on the edge: a loss above {top:.4g} ({far} of {len(losses):,})." if far else ""
    return f"{_capitalise(search.loss_name)} of every trial as it ended; the line{two} is the best so far.{edge}"


def _unit(longest: float) -> tuple[float, str]:
    for length, name in ((formatting.HOUR, "hours"), (formatting.MINUTE, "minutes")):
        if longest >= 3 * length:
            return length, name
    return 1.0, "seconds"
