"""Style of the report's figures: colours, type, charts of labelled lines, and a drawing as SVG and PNG.

Text stays text, so that the page's own typeface sets it and a search finds it. Few colours, which a colour-blind
reader distinguishes by lightness too; whatever a colour says, a word, a mark or a place says as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any, TypedDict

from sp500.formatting import KEPT, NOTHING, percent

if TYPE_CHECKING:  # modules with sentences for a terminal import this one, and matplotlib takes 0.2 s
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, MUTED, RULE = "#1b2430", "#667085", "#d5dae1"
BLUE, GREY, ORANGE, TEAL = "#0b5cab", "#9aa4b2", "#b8500f", "#2a9d8f"
COLORS = {
    **dict.fromkeys(("solo", "sequential", "in_memory"), GREY),
    **dict.fromkeys(("packed", "parallel", "streaming"), TEAL),
    "ray": BLUE,
}
"""One colour per arm in all figures: plain, the best that one machine does, and Ray."""
VERDICT = {"better": BLUE, "worse": ORANGE}
# Inches: a chart next to its sentence, one over the whole page, one in the first screen; a letter of their text.
WIDTH, WIDE, SMALL, LETTER = 7.7, 12.2, 3.5, 0.068
LABEL = 0.45
"""Share of a chart's width that a label may take."""
LONGEST = 18
"""Letters of most labels of the first screen: 'packed without Ray'."""
MANY = 12
"""Rows of dots from which they move together."""
PIXELS = ContextVar("pixels", default=160)
"""Of a PNG, per inch; 0: none is drawn."""
FAR = 6
"""Intervals are clipped at as many times the middle reach of all."""
PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
"""Behind words that a line may cross."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
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


class Look(TypedDict, total=False):
    """Keyword arguments of matplotlib's lines and marks."""

    color: str
    linestyle: str
    marker: str
    markerfacecolor: str
    markersize: float
    markeredgewidth: float


@dataclass(frozen=True)
class Figure:
    """A drawing and the sentence beneath it, which is also its text for those who cannot see it."""

    name: str
    """Unique on the page; the files' name."""
    svg: str
    caption: str
    png: bytes
    """Empty inside `without_pixels`."""


@dataclass(frozen=True)
class Bar:
    """A labelled bar with its number as text; hollow: it was not measured."""

    label: str
    value: float
    text: str
    color: str
    hollow: bool = False


@dataclass(frozen=True)
class Dot:
    """A share by which something is better, with its interval and verdict."""

    label: str
    value: float
    ends: tuple[float, float] | None
    word: str
    """better | worse | unclear | '-'."""
    mark: str = "o"


@contextmanager
def apply_style() -> Iterator[None]:
    """Apply the report's look for as long as a figure is drawn; also a decorator."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        yield


@contextmanager
def without_pixels() -> Iterator[None]:
    """Draw no PNG, for a page without them: they need as much time as everything else."""
    token = PIXELS.set(0)
    try:
        yield
    finally:
        PIXELS.reset(token)


def canvas(
    height: float,
    labels: Sequence[str],
    *,
    right: float,
    below: float,
    width: float,
) -> tuple[Canvas, Axes]:
    """Return a chart with one labelled line per item, first on top.

    Margins are in inches; the left one fits the labels.
    """
    from matplotlib.figure import Figure as Canvas

    chart = Canvas(figsize=(width, height))
    most = int(LABEL * width / LETTER)
    labels = [label if len(label) <= most else f"{label[: most - 1]}\u2026" for label in labels]
    # The charts of the first screen begin at one place.
    left = LETTER * max(*map(len, labels), LONGEST if width == SMALL else 0) + 0.1
    chart.subplots_adjust(left / width, below / height, 1 - right / width, 1 - 0.03 / height)
    axes = chart.subplots()
    axes.set(ylim=(len(labels) - 0.4, -0.6), yticks=range(len(labels)))
    axes.set_yticklabels(labels, color=INK, fontsize=9)
    return chart, axes


@apply_style()
def draw_bars(
    name: str, bars: Sequence[Bar], caption: str, *, width: float = WIDTH, line: tuple[float, str] | None = None
) -> Figure:
    """Draw labelled bars; `line` is a value to compare them with, such as a budget, and its text."""
    below = 0.22 if line else 0.03
    right = LETTER * max(len(item.text) for item in bars) + 0.15
    chart, axes = canvas(
        0.06 + 0.29 * len(bars) + below, [item.label for item in bars], right=right, below=below, width=width
    )
    value, text = line or (0.0, "")
    most = 1.02 * max(*(item.value for item in bars), value) or 1.0
    axes.set(xticks=[], xlim=(0, most))
    axes.spines["bottom"].set_visible(False)
    letter = LETTER * most / (axes.get_position().width * width)
    for place, item in enumerate(bars):
        color, edge = ("none", item.color) if item.hollow else (item.color, None)
        axes.barh(place, item.value, height=0.6, color=color, edgecolor=edge)
        # A number that the line would cross is behind the line.
        end = value if item.value <= value < item.value + letter * (len(item.text) + 1.5) else item.value
        axes.annotate(item.text, (end, place), xytext=(5, 0), textcoords="offset points", va="center")
    if line:
        axes.axvline(value, color=INK, linestyle="--", linewidth=0.9)
        late = value > 0.5 * most
        axes.annotate(
            text, (value, 0), xycoords=("data", "axes fraction"), xytext=(-3 if late else 3, -3),
            textcoords="offset points", ha="right" if late else "left", va="top", fontsize=8.5, color=MUTED,
        )  # fmt: skip
    return render(chart, name, caption)


@apply_style()
def draw_dots(
    name: str, dots: Sequence[Dot], caption: str, *, label: str = "", width: float = WIDTH, words: bool = True
) -> Figure:
    """Draw dot and whisker per item, in percent. What lies far outside of the others is clipped, with an arrow."""
    texts = [
        percent(dot.value, 2, sign=True) + (f"  {dot.word}" if words and dot.word != NOTHING else "") for dot in dots
    ]
    below = 0.45 if label else 0.03
    right = LETTER * max(map(len, texts)) + 0.15
    height = 0.17 + (0.27 if len(dots) <= MANY else 0.2) * len(dots) + below
    chart, axes = canvas(height, [dot.label for dot in dots], right=right, below=below, width=width)
    low, high = _limit(dots)
    axes.set_xlim(100 * low, 100 * high)
    across = axes.get_yaxis_transform()
    for place, (dot, text) in enumerate(zip(dots, texts, strict=True)):
        color = VERDICT.get(dot.word, MUTED if dot.word == KEPT else INK)
        ends = dot.ends or (dot.value, dot.value)
        axes.plot([100 * min(max(end, low), high) for end in ends], [place, place], color=color)
        for is_out, edge, arrow in ((ends[0] < low, 0.0, "<"), (ends[1] > high, 1.0, ">")):
            if is_out:
                axes.plot([edge], [place], arrow, transform=across, color=color, markersize=6, clip_on=False)
        if low <= dot.value <= high:
            axes.plot([100 * dot.value], [place], dot.mark, color=color, markersize=6)
        axes.text(1.03, place, text, transform=across, va="center", color=color)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=label) if label else axes.set(xticks=[])
    return render(chart, name, caption)


def _limit(dots: Sequence[Dot]) -> tuple[float, float]:
    """Return the ends of the axis: all of the intervals, unless some reach far beyond the middle one."""
    reaches = [max(map(abs, (dot.value, *(dot.ends or ())))) for dot in dots]
    # What is better is never clipped, since it is what the reader looks for.
    winners = [reach for reach, dot in zip(reaches, dots, strict=True) if dot.word == "better"]
    most = max(FAR * median(reaches), *winners, 1e-4)
    every = [0.0, *(end for dot in dots for end in (dot.value, *(dot.ends or ())))]
    low, high = max(min(every), -most), min(max(every), most)
    room = 0.04 * (high - low) or 1e-4
    return low - room, high + room


def render(chart: Canvas, name: str, caption: str) -> Figure:
    """Render the canvas as SVG and PNG with its caption; `name` is unique on the page."""
    import matplotlib as mpl

    file, pixels = io.StringIO(), io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The salt keeps the ids of two drawings on one page apart, and the same from one report to the next.
    with mpl.rc_context({"svg.hashsalt": name}):
        chart.savefig(file, format="svg", transparent=True, metadata=nothing)
    if dpi := PIXELS.get():
        chart.savefig(pixels, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    svg = file.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])
    labelled = svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return Figure(name, labelled, caption, pixels.getvalue())
