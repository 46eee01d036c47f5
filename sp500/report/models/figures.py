"""Figures of models, as SVG for use inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
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
from sp500.runs.details import Breakdown, Importance, Score
from sp500.runs.record import EpochMetrics

PANELS, ACROSS = 15, 5
ORDERS = 20
"""From which largest over smallest loss the axis of a panel is logarithmic."""
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
    return draw_dots(f"improvements-{group.name}", dots, caption, label=f"{metric} below that of the {over}, %")


@apply_style()
def curves(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Draw small multiples: training and validation loss per epoch against their values at the best epoch."""
    rows = [row for row in group.models if row["run"] in epochs]
    if not rows:
        return None
    shown = rows[:PANELS]
    down = -(-len(shown) // ACROSS)
    height = 0.3 + 1.75 * down
    chart = Canvas(figsize=(WIDE, height))
    chart.subplots_adjust(0.045, 0.22 / height, 0.995, 1 - 0.72 / height, hspace=0.75, wspace=0.32)
    panels = chart.subplots(down, ACROSS, squeeze=False).flatten()
    relative = group.kind.from_prices
    for panel, row in zip(panels, shown, strict=False):
        _losses(panel, epochs[row["run"]], row, relative=relative)
    for panel in panels[len(shown) :]:
        panel.remove()
    before = "naive forecast" if relative else "untrained"
    labels = ("training", "validation", "best epoch", before)
    handles = list(zip(panels[0].get_lines(), labels, strict=False))  # a run of an earlier version has three
    chart.legend(*zip(*handles, strict=True), loc="upper left", ncols=len(labels), borderaxespad=0)
    scale = ", in % above its value at the best epoch" if relative else ""
    logs = any(panel.get_yscale() == "log" for panel in panels[: len(shown)])
    wide = f", logarithmic where losses span {ORDERS} times" if logs else ""
    start = " Dashed: the naive forecast that training starts from. Where it was kept, curves are in % above epoch 1."
    caption = (
        f"Loss per epoch{scale}; each panel has its own scale{wide}. Where validation rises while training "
        "falls, a model may be overfitting."
        f"{start if relative else ' Dashed: the untrained model.'}{_best_of(shown, rows)}"
    )
    return render(chart, f"curves-{group.name}", caption)


@apply_style()
def measures(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Draw small multiples: each number that a task of the user's measures, per epoch, with a line per model."""
    shown = group.models[:PANELS]
    names = sorted({name for row in shown for epoch in epochs.get(row["run"], ()) for name in epoch.measures})
    if not names:
        return None
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
    return render(chart, f"measures-{group.name}", f"{caption}{_best_of(shown, group.models)}")


@apply_style()
def growth(group: Group) -> Figure | None:
    """Draw the growth of 1 over the test: every model thin, the best thick; below, its drawdown."""
    known = ((row["name"], read()) for row in group.models if (read := row["growth"]))
    traded = [(name, lines) for name, lines in islice(known, PANELS) if lines]
    if not traded or len(traded[0][1]["dates"]) < FEWEST_MONTHS:
        return None
    (name, best), *others = traded
    chart, (axes, below) = _stack()
    for _, lines in reversed(others):
        axes.plot(_dates(lines), lines["model"], color=BLUE, linewidth=0.7, alpha=0.4)
    model = axes.plot(_dates(best), best["model"], color=BLUE, linewidth=2.6)
    held = axes.plot(_dates(best), best["buy_and_hold"], color=INK, linewidth=1, linestyle="--")  # seen over the model
    for curve, color in ((best["buy_and_hold"], GREY), (best["model"], BLUE)):
        below.fill_between(_dates(best), 100 * _drawdown(curve), color=color, alpha=0.35, linewidth=0)
    chart.legend([*model, *held], (name, formatting.BUY_AND_HOLD), loc="upper left", ncols=2, borderaxespad=0)
    cost = formatting.setting(float(group.newest.config.get("eval", {}).get("cost_bps", 0.0)))
    caption = (
        f"Value of 1 invested at the start of the test by the sign of the forecasts, after costs of {cost} bp; below, "
        f"the fall from the highest month before. One point a month. Thick: {name}"
    )
    chosen = f", thin: {formatting.some(len(others), 'other')}" if others else ""
    caption += f"{chosen}: the best on this test, which flatters it." if len(group.models) > 1 else "."
    if best["model"] == best["buy_and_hold"]:
        caption += " It says up on every day, so it is buy-and-hold."
    return render(chart, f"growth-{group.name}", caption)


@apply_style()
def portfolios(name: str, details: Breakdown, salt: str) -> Figure | None:
    """Draw the value of the portfolios by the size of the forecasts, and the drawdown of long-short."""
    rules = {strategy["name"]: strategy for strategy in details["strategies"]}
    if not details["groups"] or len(details["months"]) < FEWEST_MONTHS:
        return None
    chart, (axes, below) = _stack()
    dates = np.array(details["months"], "datetime64[D]")
    groups = [f"group {number}" for number in range(1, details["groups"] + 1)]
    for place, key in enumerate(groups):
        share = place / max(len(groups) - 1, 1)
        axes.plot(dates, rules[key]["curve"], color=BLUE, alpha=0.25 + 0.75 * share, linewidth=0.8 + share, label=key)
    if spread := rules.get("long_short"):
        axes.plot(dates, spread["curve"], color=ORANGE, label="long-short")
        below.fill_between(dates, [-100 * abs(fall) for fall in spread["drawdown"]], color=ORANGE, alpha=0.35)
    chart.legend(loc="upper left", ncols=7, borderaxespad=0)
    caption = (
        f"Value of 1 in the tickers of each group by {name}'s forecasts (group 1: the lowest), after costs; below, the "
        "fall of long-short from its highest value before."
    )
    return render(chart, f"portfolios-{salt}", caption)


def importance(name: str, parts: Importance, salt: str) -> Figure:
    """Draw the increase of the loss when a feature is shuffled, with its interval."""
    ranked = sorted(parts["features"], key=lambda part: -part["increase"])[:PANELS]
    dots = [
        Dot(part["name"], part["share"], formatting.bounds(part), formatting.NOTHING)
        for part in ranked
        if part["share"] is not None
    ]
    return draw_dots(f"importance-{salt}", dots, f"What {name} uses: increase of the loss when a feature is shuffled.")


def tickers(name: str, scores: Mapping[str, Score], salt: str) -> Figure | None:
    """Draw the improvement over the naive forecast of every ticker with its interval, largest first."""
    dots = [
        Dot(ticker, value, formatting.bounds(gain), against_naive(gain))
        for ticker, score in scores.items()
        if (value := (gain := score["improvement"])["value"]) is not None
    ]
    if len(dots) < 2:
        return None
    dots.sort(key=lambda dot: -dot.value)
    shown = dots if len(dots) <= DOTS else [*dots[: DOTS // 2], *dots[-DOTS // 2 :]]
    caption = f"{name} by ticker: improvement over the naive forecast, with 95% intervals; one in 40 is better by luck."
    return draw_dots(f"tickers-{salt}", shown, caption)


def _stack() -> tuple[Canvas, tuple[Axes, Axes]]:
    """Return a chart of values, and beneath it one of drawdowns in percent."""
    chart = Canvas(figsize=(WIDE, 3.6))
    chart.subplots_adjust(0.055, 0.24 / 3.6, 0.995, 1 - 0.4 / 3.6, hspace=0.12)
    axes, below = chart.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.axhline(1, color=RULE, linewidth=0.8)
    axes.set_ylabel("value of 1")
    axes.tick_params(labelbottom=False)
    below.set_ylabel("drawdown, %")
    below.margins(x=0)
    return chart, (axes, below)


def _dates(lines: Mapping[str, Any]) -> Any:
    return np.array(lines["dates"], "datetime64[D]")


def _drawdown(curve: Sequence[float]) -> Any:
    values = np.array(curve, float)
    return values / np.maximum.accumulate(values) - 1


@apply_style()
def confusion(group: Group) -> Figure | None:
    """Draw classes of the test as squares: rows are the truth, columns are what the best model predicted."""
    of_many = (row for row in group.models if 2 < len(row["test"].get("confusion_matrix") or ()) <= MOST_CLASSES)
    best = next(of_many, None)
    if best is None:
        return None
    matrix = best["test"]["confusion_matrix"]
    classes = list(map(str, range(len(matrix))))
    chart = Canvas(figsize=(WIDE, 0.6 + SQUARE * len(matrix)))
    side, height = SQUARE * len(matrix), chart.get_figheight()
    axes = chart.add_axes((0.6 / WIDE, 0.1 / height, side / WIDE, side / height))
    shares = np.array(matrix) / np.maximum(np.sum(matrix, axis=1, keepdims=True), 1)
    axes.pcolormesh(shares**0.5, cmap="Blues", vmax=1.5, edgecolors=RULE, linewidth=0.8)
    for truth, answer in np.argwhere(matrix):
        axes.text(answer + 0.5, truth + 0.5, matrix[truth][answer], ha="center", va="center", fontsize=8.5)
    centres = np.arange(len(matrix)) + 0.5
    axes.set_xticks(centres, classes)
    axes.set_yticks(centres, classes)
    axes.invert_yaxis()
    axes.set(xlabel="predicted", ylabel="truth")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    caption = (
        f"Confusion matrix of {best['name']} on the test: windows of each class by the predicted class. Off the "
        "diagonal are its errors."
    )
    return render(chart, f"confusion-{group.name}", caption)


def _best_of(shown: Sequence[Any], rows: Sequence[Any]) -> str:
    return "" if len(shown) == len(rows) else f" The {len(shown):,} best of {len(rows):,} models."


def _losses(axes: Axes, epochs: Sequence[EpochMetrics], row: ModelRow, *, relative: bool) -> None:
    """Draw the losses of a run, those of returns `relative`: in % above the best epoch's, since they change little."""
    # Epoch 0, the untrained model, has no line: then the first epoch is the base, and there is no dot.
    at = next((point for point in epochs if point.epoch == row["best_epoch"]), epochs[0])
    base = at.valid_loss or 1.0

    def scale(loss: float, by: float) -> float:
        return 100 * (loss / by - 1) if relative else loss

    numbers = [point.epoch for point in epochs]
    train = [scale(point.train_loss, at.train_loss) for point in epochs]
    valid = {point.epoch: scale(point.valid_loss, base) for point in epochs if point.valid_loss is not None}
    best = [epoch for epoch in valid if epoch == row["best_epoch"]]
    axes.plot(numbers, train, color=GREY)
    axes.plot(list(valid), list(valid.values()), color=BLUE)
    axes.plot(best, [valid[epoch] for epoch in best], "o", color=BLUE, markersize=5)
    if row["untrained_loss"] is not None:
        axes.axhline(scale(row["untrained_loss"], base), color=ORANGE, linewidth=1, linestyle="--")
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    if relative:
        axes.axhline(0, color=RULE, linewidth=0.8, zorder=0)
        axes.yaxis.set_major_formatter(
            lambda value, _: f"{value:+,g}%".replace("-", formatting.MINUS) if value else "0%"
        )
    elif max(train) > ORDERS * min(train) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    title = f"{fill(row['name'], 30)}\nepoch {row['best_epoch']} of {len(epochs)}"
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
