"""Figures of models, as SVG for use inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter

from sp500 import formatting
from sp500.formatting import against_naive
from sp500.report.models.results import Group, ModelRow
from sp500.report.plot_style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RULE,
    WIDE,
    Dot,
    Figure,
    apply_style,
    draw_dots,
    render,
)
from sp500.runs.record import EpochMetrics

PANELS, ACROSS = 15, 5
ORDERS = 20
"""From which largest over smallest loss on the axis is logarithmic."""
SQUARE, MOST_CLASSES = 0.34, 20
"""Inches of a square of a confusion matrix, and classes that still fit."""
FEWEST_MONTHS = 3
DOTS = 40
"""Models in the figure of improvements: more make it longer than anyone reads."""


def improvements(group: Group) -> Figure | None:
    """Draw dot and whisker per model: the improvement over the best naive forecast and its 95% interval."""
    # If the naive forecast is never wrong, an improvement has no value.
    rows = [
        (gain, Dot(row["name"], value, formatting.bounds(gain), against_naive(gain, group.naive_epoch(row))))
        for row in group.models
        if (gain := row["improvement"]) and (value := gain["value"]) is not None
    ]
    if not rows:
        return None
    gain, dots = rows[0][0], [dot for _, dot in rows[:DOTS]]
    over = group.kind.name_naive(gain["over"])
    metric = formatting.METRIC.get(gain["metric"], "error")
    caption = (
        f"Improvement over the best naive forecast ({over}) in {metric}, with 95% intervals for this test set: one "
        f"that crosses the line cannot be told apart from it.{_best_of(dots, rows)}"
    )
    return draw_dots(f"improvements{group.name}", dots, caption, label=f"{metric} below that of the {over}, %")


@apply_style()
def curves(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Draw small multiples: training and validation loss per epoch against their values at the best epoch."""
    rows = [row for row in group.models if len(epochs.get(row["run"], ())) > 1]
    if not rows:
        return None
    shown = rows[:PANELS]
    down = -(-len(shown) // ACROSS)
    height = 0.3 + 1.75 * down
    chart = Canvas(figsize=(WIDE, height))
    chart.subplots_adjust(0.05, 0.22 / height, 0.995, 1 - 0.72 / height, hspace=0.75, wspace=0.1)
    panels = chart.subplots(down, ACROSS, sharey=True, squeeze=False).flatten()
    relative = group.kind.from_prices
    for panel, row in zip(panels, shown, strict=False):
        (_relative if relative else _absolute)(panel, epochs[row["run"]], row)
    losses = [epoch.train_loss for row in shown for epoch in epochs[row["run"]]]
    orders = not relative and max(losses) > ORDERS * min(losses) > 0
    if orders:
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    for panel in panels[len(shown) :]:
        panel.remove()
    before = "naive forecast" if relative else "untrained"
    labels = ("training", "validation", "best epoch", before)
    handles = list(zip(panels[0].get_lines(), labels, strict=False))  # a run of an earlier version has three
    chart.legend(*zip(*handles, strict=True), loc="upper left", ncols=len(labels), borderaxespad=0)
    scale = ", in % above its value at the best epoch" if relative else " (logarithmic)" if orders else ""
    start = " Dashed: the naive forecast that training starts from. Where it was kept, curves are in % above epoch 1."
    caption = (
        f"Loss per epoch{scale}; the test metrics come from the weights of the best epoch. Where validation rises "
        "while training falls, a model may be overfitting."
        f"{start if relative else ' Dashed: the untrained model.'}{_best_of(shown, rows)}"
    )
    return render(chart, "curves" + group.name, caption)


@apply_style()
def measures(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Draw small multiples: each number that a task of the user's measures, per epoch, with a line per model."""
    names = sorted({name for row in group.models for epoch in epochs.get(row["run"], ()) for name in epoch.measures})
    if not names:
        return None
    shown = group.models[:PANELS]
    down = -(-len(names) // ACROSS)
    height = 0.2 + 1.75 * down
    chart = Canvas(figsize=(WIDE, height))
    chart.subplots_adjust(0.05, 0.22 / height, 0.995, 1 - 0.3 / height, hspace=0.5, wspace=0.35)
    for place, name in enumerate(names):
        panel = chart.add_subplot(down, ACROSS, place + 1)
        for number, row in enumerate(shown):
            points = [(epoch.epoch, epoch.measures.get(name, np.nan)) for epoch in epochs.get(row["run"], ())]
            panel.plot([at for at, _ in points], [value for _, value in points], color=GREY if number else BLUE)
        panel.set_title(name, loc="left", fontsize=9, color=INK)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    caption = "Numbers of the task on the validation windows, per epoch; blue: the first model of the table."
    return render(chart, "measures" + group.name, f"{caption}{_best_of(shown, group.models)}")


@apply_style()
def growth(group: Group) -> Figure | None:
    """Draw the growth of 1 over the test by trading the best model's forecasts, and by holding."""
    best = next((row for row in group.models if row["growth"]), None)
    if best is None or best["growth"] is None:
        return None
    lines, dates = best["growth"], np.array(best["growth"]["dates"], "datetime64[D]")
    if len(dates) < FEWEST_MONTHS:
        return None
    height = 2.6
    chart = Canvas(figsize=(WIDE, height))
    chart.subplots_adjust(0.065, 0.24 / height, 0.995, 1 - 0.4 / height)
    axes = chart.subplots()
    axes.axhline(1, color=RULE, linewidth=0.8)
    held = axes.plot(dates, lines["buy_and_hold"], color=GREY)
    traded = axes.plot(dates, lines["model"], color=BLUE)
    chart.legend([*traded, *held], (best["name"], formatting.BUY_AND_HOLD), loc="upper left", ncols=2, borderaxespad=0)
    axes.set_xlim(dates[0], dates[-1])
    axes.set_ylabel("value of 1 invested")
    cost = formatting.setting(float(group.newest.config.get("eval", {}).get("cost_bps", 0.0)))
    caption = (
        f"Growth of 1 invested at the start of the test, by trading the forecasts of {best['name']} (long where it "
        f"says up, short where down), after costs of {cost} bp, next to {formatting.BUY_AND_HOLD}. One point a month."
    )
    if len(group.models) > 1:
        which = "" if best is group.models[0] else " whose run has this curve"
        caption += f" It is the best model of the table{which}: chosen on this test, which flatters it."
    if lines["model"] == lines["buy_and_hold"]:
        caption += " The two are the same: it says up on every day."
    return render(chart, "growth" + group.name, caption)


@apply_style()
def confusion(group: Group) -> Figure | None:
    """Draw classes of the test as squares: rows are the truth, columns are what the best model predicted."""
    of_many = (row for row in group.models if 2 < len(row["test"].get("confusion_matrix") or ()) <= MOST_CLASSES)
    best = next(of_many, None)
    if best is None:
        return None
    matrix = best["test"]["confusion_matrix"]
    classes = range(len(matrix))
    chart = Canvas(figsize=(WIDE, 0.6 + SQUARE * len(matrix)))
    side, height = SQUARE * len(matrix), chart.get_figheight()
    axes = chart.add_axes((0.6 / WIDE, 0.1 / height, side / WIDE, side / height))
    for truth, counts in enumerate(matrix):
        for answer, count in enumerate(counts):
            share = count / (sum(counts) or 1)
            color = BLUE if truth == answer else ORANGE
            corner, alpha = (answer - 0.5, truth - 0.5), 0.75 * share**0.5
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=color, alpha=alpha, edgecolor=RULE))
            if count:
                axes.text(answer, truth, f"{count}", ha="center", va="center", fontsize=8.5)
    axes.set(xlim=(-0.5, len(matrix) - 0.5), ylim=(len(matrix) - 0.5, -0.5), xticks=classes, yticks=classes)
    axes.set(xlabel="predicted", ylabel="truth")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    caption = (
        f"Confusion matrix of {best['name']} on the test: windows of each class by the predicted class. Off the "
        "diagonal are its errors."
    )
    return render(chart, "confusion" + group.name, caption)


def _best_of(shown: Sequence[Any], rows: Sequence[Any]) -> str:
    return "" if len(shown) == len(rows) else f" The {len(shown):,} best of {len(rows):,} models."


def _absolute(axes: Axes, epochs: Sequence[EpochMetrics], row: ModelRow) -> None:
    """Draw the losses themselves."""
    valid = [(point.epoch, point.valid_loss) for point in epochs if point.valid_loss is not None]
    best = [(epoch, loss) for epoch, loss in valid if epoch == row["best_epoch"]]
    axes.plot([point.epoch for point in epochs], [point.train_loss for point in epochs], color=GREY)
    axes.plot([epoch for epoch, _ in valid], [loss for _, loss in valid], color=BLUE)
    axes.plot([epoch for epoch, _ in best], [loss for _, loss in best], "o", color=BLUE, markersize=5)
    if row["untrained_loss"] is not None:
        axes.axhline(row["untrained_loss"], color=ORANGE, linewidth=1, linestyle="--")
    _title(axes, epochs, row)


def _title(axes: Axes, epochs: Sequence[EpochMetrics], row: ModelRow) -> None:
    axes.set_title(
        f"{fill(row['name'], 30)}\nepoch {row['best_epoch']} of {len(epochs)}", loc="left", fontsize=9, color=INK
    )
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _relative(axes: Axes, epochs: Sequence[EpochMetrics], row: ModelRow) -> None:
    """Draw the losses in % above those of the best epoch: those of returns change by little."""
    # Epoch 0, the untrained model, has no line: then the first epoch is the base, and there is no dot.
    at = next((point for point in epochs if point.epoch == row["best_epoch"]), epochs[0])
    valid = [(point.epoch, point.valid_loss) for point in epochs if point.valid_loss is not None]
    axes.plot(
        [point.epoch for point in epochs],
        [100 * (point.train_loss / at.train_loss - 1) for point in epochs],
        color=GREY,
    )
    base = at.valid_loss or 1.0
    axes.plot([epoch for epoch, _ in valid], [100 * (loss / base - 1) for _, loss in valid], color=BLUE)
    best = [at.epoch] if at.epoch == row["best_epoch"] else []
    axes.plot(best, [0] * len(best), "o", color=BLUE, markersize=5)
    if row["untrained_loss"] is not None:
        axes.axhline(100 * (row["untrained_loss"] / base - 1), color=ORANGE, linewidth=1, linestyle="--")
    axes.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    _title(axes, epochs, row)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+,g}%".replace("-", formatting.MINUS) if value else "0%")
