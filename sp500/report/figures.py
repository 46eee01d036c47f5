"""The report's figures, as SVG that can stand inside a page.

Text stays text, so that the page's own typeface sets it and a search finds it. Two colours that a colour-blind reader
tells apart by lightness too; whatever a colour says, a word or a place says as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from sp500.report import words
from sp500.report.findings import Scale, Search, Trials, by_side
from sp500.report.models import Group
from sp500.runs.record import EpochMetrics

INK, MUTED, RULE = "#1b2430", "#667085", "#d5dae1"
BLUE, GREY, ORANGE = "#0b5cab", "#9aa4b2", "#b8500f"
VERDICT = {"better": BLUE, "worse": ORANGE}
BASELINES = ("in_memory", "sequential")
# Inches: the page's column at 96 pixels an inch, and a letter of the figures' text.
WIDTH, LETTER = 10.83, 0.068
PANELS, ACROSS, CONFIGS = 15, 5, 30
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "ytick.left": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
SIDES: tuple[dict[str, Any], ...] = (
    {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": GREY, "markeredgewidth": 1.6},
    {"markersize": 3.5, "color": BLUE},
)


@dataclass(frozen=True)
class Figure:
    """A drawing and the sentence beneath it, which is also its text for those who cannot see it."""

    svg: str
    caption: str


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context(STYLE):
        yield


@_styled()
def improvements(group: Group) -> Figure | None:
    """Dot and whisker per model: the improvement over the best naive forecast and its 95 % interval."""
    rows = [row for row in group.models if row["improvement"]]
    if not rows:
        return None
    over = words.naive_name(rows[0]["improvement"]["over"], group.task)
    metric = words.METRIC.get(rows[0]["improvement"]["metric"], "error")
    canvas, axes = _canvas(0.62 + 0.27 * len(rows), [row["name"] for row in rows], right=1.6, below=0.45)
    for place, row in enumerate(rows):
        found, verdict = row["improvement"], words.against_naive(row["improvement"])
        color = VERDICT.get(verdict, INK)
        if verdict != words.NOTHING:
            axes.plot([100 * found["low"], 100 * found["high"]], [place, place], color=color)
        axes.plot([100 * found["value"]], [place], "o", color=color, markersize=6)
        text = f"{words.percent(found['value'], 2, sign=True)}  {'' if verdict == words.NOTHING else verdict}"
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", color=color)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"{metric} below that of the {over}, %   (right of the line: better)")
    caption = (
        f"Improvement over the best naive forecast ({over}) in {metric}: a dot with its 95% interval. A model whose "
        "interval crosses the line cannot be told from the naive forecast."
    )
    return _drawn(canvas, "improvements" + group.name, caption)


@_styled()
def curves(group: Group, epochs: Mapping[str, Sequence[EpochMetrics]]) -> Figure | None:
    """Small multiples: training and validation loss per epoch against their values at the best epoch."""
    rows = [row for row in group.models if len(epochs.get(row["run"], ())) > 1]
    if not rows:
        return None
    shown = rows[:PANELS]
    down = -(-len(shown) // ACROSS)
    height = 0.3 + 1.75 * down
    canvas = Canvas(figsize=(WIDTH, height))
    canvas.subplots_adjust(0.05, 0.22 / height, 0.995, 1 - 0.72 / height, hspace=0.75, wspace=0.1)
    panels = canvas.subplots(down, ACROSS, sharey=True, squeeze=False).flatten()
    for panel, row in zip(panels, shown, strict=False):
        _curve(panel, epochs[row["run"]], row)
    for panel in panels[len(shown) :]:
        panel.remove()
    lines = panels[0].get_lines()[1:]
    canvas.legend(lines, ("training", "validation", "best epoch"), loc="upper left", ncols=3, borderaxespad=0)
    kept = "" if len(shown) == len(rows) else f" The {len(shown)} best of {len(rows)} models."
    caption = (
        "Loss per epoch, in % above its value at the best epoch, whose weights the test metrics come from. Where "
        f"validation rises while training falls, a model learns its training set by heart.{kept}"
    )
    return _drawn(canvas, "curves" + group.name, caption)


@_styled()
def seconds(found: Search) -> Figure | None:
    """The two sides' seconds as a pair of bars."""
    first, second = found.numbers["sequential_seconds"], found.numbers["parallel_seconds"]
    if first is None or second is None:
        return None
    cores = f", {words.some(found.cores, 'core')}" if found.cores else ""
    canvas, axes = _canvas(0.66, ["one after another", f"Ray Tune{cores}"], right=0.6)
    for place, (value, color) in enumerate(((first, GREY), (second, BLUE))):
        _bar(axes, place, value, words.seconds(value), color)
    return _drawn(canvas, "seconds", "Seconds from the start of the process to its end; shorter is better.")


@_styled()
def losses(found: Search, trials: Mapping[str, Trials]) -> Figure | None:
    """Validation loss of every config, best first; both sides over each other where both ran."""
    sides = by_side(found, trials)
    ended = [one for one in (sides[0][1].values() if sides else ()) if one["valid_loss"] is not None]
    if not ended:
        return None
    shown = sorted(ended, key=lambda one: float(one["valid_loss"]))[:CONFIGS]
    labels = [words.config(one["overrides"]) for one in shown]
    canvas, axes = _canvas(0.95 + 0.19 * len(shown), labels, right=0.2, above=0.32, below=0.5)
    places = {one["id"]: place for place, one in enumerate(shown)}
    for (side, by_id), style in zip(sides, SIDES, strict=False):
        found_losses = {place: by_id.get(key, {}).get("valid_loss") for key, place in places.items()}
        kept = {place: loss for place, loss in found_losses.items() if loss is not None}
        axes.plot(list(kept.values()), list(kept), "o", label=side, linestyle="none", **style)
    axes.grid(axis="y")
    axes.set(xlabel="validation loss at the best epoch")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=2, borderaxespad=0.2)
    cut = "" if len(shown) == len(ended) else f" The {len(shown)} best of {len(ended):,}."
    rings = " A dot inside its ring: both sides found the same." if len(sides) > 1 else ""
    return _drawn(canvas, "losses", f"Validation loss of every config, best first.{rings}{cut}")


@_styled()
def scale(found: Scale) -> Figure | None:
    """Two panels: samples per second, and peak memory, per multiplier and arm."""
    if not found.rows:
        return None
    labels = [f"{words.TIMES}{row['multiplier']:,} {words.arm(row['arm'])}" for row in found.rows]
    height = 0.35 + 0.25 * len(found.rows)
    # Half of what the labels leave, less room for the numbers beside the bars.
    panel = (WIDTH - LETTER * max(map(len, labels)) - 0.1) / 2 - 1.0
    canvas, left = _canvas(height, labels, right=panel + 2.0, above=0.3)
    room = left.get_position()
    right = canvas.add_axes((room.x1 + 1.0 / WIDTH, room.y0, room.width, room.height))
    right.set(yticks=[], ylim=left.get_ylim())
    for place, row in enumerate(found.rows):
        state = "" if row["status"] == "ok" else words.ended(row["status"])
        color = GREY if row["arm"] in BASELINES else BLUE
        rate, memory = row["samples_per_second"], row["peak_memory_bytes"]
        _bar(left, place, 0 if state else rate or 0, state or words.fixed(rate, 0), color)
        _bar(right, place, 0 if state else memory or 0, state or words.size(memory), color)
    for axes, title in ((left, "samples per second"), (right, "peak memory per process or node")):
        axes.set_title(title, loc="left", fontsize=9, color=MUTED)
    return _drawn(
        canvas,
        "scale",
        "Training windows per second, and peak memory of the largest process, or node of Ray.",
    )


def _canvas(
    height: float, labels: Sequence[str], *, right: float, above: float = 0.03, below: float = 0.03
) -> tuple[Canvas, Axes]:
    """A chart with one labelled line per item, first on top; margins in inches, the left one fits the labels."""
    canvas = Canvas(figsize=(WIDTH, height))
    left = LETTER * max(map(len, labels)) + 0.1
    canvas.subplots_adjust(left / WIDTH, below / height, 1 - right / WIDTH, 1 - above / height)
    axes = canvas.subplots()
    axes.set(ylim=(len(labels) - 0.4, -0.6), yticks=range(len(labels)))
    axes.set_yticklabels(labels, color=INK, fontsize=9)
    return canvas, axes


def _bar(axes: Axes, place: int, value: float, text: str, color: str) -> None:
    """A bar with its number at the end, which makes an axis needless."""
    axes.barh(place, value, height=0.6, color=color)
    axes.annotate(text, (value, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set(xticks=[], xlim=(0, max(1.02 * value, axes.get_xlim()[1] if place else 0) or 1))
    axes.spines["bottom"].set_visible(False)


def _curve(axes: Axes, epochs: Sequence[EpochMetrics], row: dict[str, Any]) -> None:
    at = next((one for one in epochs if one.epoch == row["best_epoch"]), epochs[-1])
    valid = [(one.epoch, one.valid_loss) for one in epochs if one.valid_loss is not None]
    axes.axhline(0, color=RULE, linewidth=0.8)
    axes.plot([one.epoch for one in epochs], [100 * (one.train_loss / at.train_loss - 1) for one in epochs], color=GREY)
    base = at.valid_loss or 1.0
    axes.plot([epoch for epoch, _ in valid], [100 * (loss / base - 1) for _, loss in valid], color=BLUE)
    axes.plot([at.epoch], [0], "o", color=BLUE, markersize=5)
    axes.set_title(f"{fill(row['name'], 30)}\nepoch {at.epoch} of {len(epochs)}", loc="left", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+,g}%".replace("-", words.MINUS) if value else "0%")


def _drawn(canvas: Canvas, salt: str, caption: str) -> Figure:
    file = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The salt keeps the ids of two drawings on one page apart, and the same from one report to the next.
    with mpl.rc_context({"svg.hashsalt": salt}):
        canvas.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])
    return Figure(svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1), caption)
