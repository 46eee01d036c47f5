"""Figures of models, as SVG that can stand inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from sp500 import formatting
from sp500.report.models.results import Group, ModelRow
from sp500.report.plot_style import BLUE, GREY, INK, ORANGE, RULE, WIDTH, Figure, canvas, drawn, styled
from sp500.runs.record import EpochMetrics

VERDICT = {"better": BLUE, "worse": ORANGE}
PANELS, ACROSS = 15, 5
DOTS = 40
"""Models in the figure of improvements: more make it longer than anyone reads."""


@styled()
def improvements(group: Group) -> Figure | None:
    """Dot and whisker per model: the improvement over the best naive forecast and its 95 % interval."""
    # Where the naive forecast is never wrong, an improvement has no value.
    rows = [
        (row, gain, value)
        for row in group.models
        if (gain := row["improvement"]) and (value := gain["value"]) is not None
    ]
    if not rows:
        return None
    over = formatting.naive_name(rows[0][1]["over"], group.task)
    metric = formatting.METRIC.get(rows[0][1]["metric"], "error")
    shown = rows[:DOTS]
    made, axes = canvas(0.62 + 0.27 * len(shown), [row["name"] for row, *_ in shown], right=1.6, below=0.45)
    for place, (row, gain, value) in enumerate(shown):
        verdict = formatting.against_naive(gain, row["best_epoch"])
        color = VERDICT.get(verdict, INK)
        if ends := formatting.bounds(gain):
            axes.plot([100 * end for end in ends], [place, place], color=color)
        axes.plot([100 * value], [place], "o", color=color, markersize=6)
        text = f"{formatting.percent(value, 2, sign=True)}  {'' if verdict == formatting.NOTHING else verdict}"
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", color=color)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"{metric} below that of the {over}, %   (right of the line: better)")
    caption = (
        f"Improvement over the best naive forecast ({over}) in {metric}: a dot with its 95% interval. A model whose "
        f"interval crosses the line cannot be told from the naive forecast.{_best_of(shown, rows)}"
    )
    return drawn(made, "improvements" + group.name, caption)


@styled()
def curves(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Small multiples: training and validation loss per epoch against their values at the best epoch."""
    rows = [row for row in group.models if len(epochs.get(row["run"], ())) > 1]
    if not rows:
        return None
    shown = rows[:PANELS]
    down = -(-len(shown) // ACROSS)
    height = 0.3 + 1.75 * down
    made = Canvas(figsize=(WIDTH, height))
    made.subplots_adjust(0.05, 0.22 / height, 0.995, 1 - 0.72 / height, hspace=0.75, wspace=0.1)
    panels = made.subplots(down, ACROSS, sharey=True, squeeze=False).flatten()
    for panel, row in zip(panels, shown, strict=False):
        _curve(panel, epochs[row["run"]], row)
    for panel in panels[len(shown) :]:
        panel.remove()
    lines = panels[0].get_lines()[1:]
    made.legend(lines, ("training", "validation", "best epoch"), loc="upper left", ncols=3, borderaxespad=0)
    caption = (
        "Loss per epoch, in % above its value at the best epoch, whose weights the test metrics come from. Where "
        "validation rises while training falls, a model learns its training set by heart. Epoch 0 is the naive "
        f"forecast that training starts from; its curves are in % above epoch 1.{_best_of(shown, rows)}"
    )
    return drawn(made, "curves" + group.name, caption)


def _best_of(shown: Sequence[Any], rows: Sequence[Any]) -> str:
    return "" if len(shown) == len(rows) else f" The {len(shown):,} best of {len(rows):,} models."


def _curve(axes: Axes, epochs: Sequence[EpochMetrics], row: ModelRow) -> None:
    # Epoch 0, the untrained model, has no line: then the first epoch is the base, and there is no dot.
    at = next((one for one in epochs if one.epoch == row["best_epoch"]), epochs[0])
    valid = [(one.epoch, one.valid_loss) for one in epochs if one.valid_loss is not None]
    axes.axhline(0, color=RULE, linewidth=0.8)
    axes.plot([one.epoch for one in epochs], [100 * (one.train_loss / at.train_loss - 1) for one in epochs], color=GREY)
    base = at.valid_loss or 1.0
    axes.plot([epoch for epoch, _ in valid], [100 * (loss / base - 1) for _, loss in valid], color=BLUE)
    best = [at.epoch] if at.epoch == row["best_epoch"] else []
    axes.plot(best, [0] * len(best), "o", color=BLUE, markersize=5)
    axes.set_title(
        f"{fill(row['name'], 30)}\nepoch {row['best_epoch']} of {len(epochs)}", loc="left", fontsize=9, color=INK
    )
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+,g}%".replace("-", formatting.MINUS) if value else "0%")
