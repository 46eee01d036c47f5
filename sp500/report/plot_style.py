"""Style of the report's figures: colours, type, a chart of labelled lines, and a drawing as SVG.

Text stays text, so that the page's own typeface sets it and a search finds it. Few colours, which a colour-blind
reader distinguishes by lightness too; whatever a colour says, a word, a mark or a place says as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:  # modules with sentences for a terminal import this one, and matplotlib takes 0.2 s
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, MUTED, RULE = "#1b2430", "#667085", "#d5dae1"
BLUE, GREY, ORANGE = "#0b5cab", "#9aa4b2", "#b8500f"
# Inches: the page's column at 96 pixels an inch, and a letter of the figures' text.
WIDTH, LETTER = 10.83, 0.068
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

    svg: str
    caption: str


@contextmanager
def apply_style() -> Iterator[None]:
    """Apply the report's look for as long as a figure is drawn; also a decorator."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        yield


def canvas(
    height: float, labels: Sequence[str], *, right: float, above: float = 0.03, below: float = 0.03
) -> tuple[Canvas, Axes]:
    """Return a chart with one labelled line per item, first on top.

    Margins are in inches; the left one fits the labels.
    """
    from matplotlib.figure import Figure as Canvas

    chart = Canvas(figsize=(WIDTH, height))
    left = LETTER * max(map(len, labels)) + 0.1
    chart.subplots_adjust(left / WIDTH, below / height, 1 - right / WIDTH, 1 - above / height)
    axes = chart.subplots()
    axes.set(ylim=(len(labels) - 0.4, -0.6), yticks=range(len(labels)))
    axes.set_yticklabels(labels, color=INK, fontsize=9)
    return chart, axes


def bar(axes: Axes, place: int, value: float, text: str, color: str, *, hollow: bool = False) -> None:
    """Draw a bar with its number at the end, which makes an axis needless; hollow: it was not measured."""
    axes.barh(place, value, height=0.6, color="none" if hollow else color, edgecolor=color if hollow else None)
    axes.annotate(text, (value, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set(xticks=[], xlim=(0, max(1.02 * value, axes.get_xlim()[1] if place else 0) or 1))
    axes.spines["bottom"].set_visible(False)


def render(chart: Canvas, salt: str, caption: str) -> Figure:
    """Render the canvas as SVG with its caption; `salt` is the figure's name, unique on the page."""
    import matplotlib as mpl

    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The salt keeps the ids of two drawings on one page apart, and the same from one report to the next.
    with mpl.rc_context({"svg.hashsalt": salt}):
        chart.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])
    return Figure(svg.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1), caption)
