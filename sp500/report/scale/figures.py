"""Speed and memory against the size of the dataset, and speed against workers, as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import log

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator

from sp500 import formatting
from sp500.formatting import GIB, MIB
from sp500.report.plot_style import COLORS, GREY, INK, MUTED, WIDTH, Bar, Figure, Look, apply_style, draw_bars, render
from sp500.report.scale.results import PLACE, Row, Scale, at, by_arm, needed_bytes, rate
from sp500.runs.results import Speedup

ALONE: dict[str, Look] = {
    "in_memory": {"color": COLORS["in_memory"], "marker": "o"},
    "streaming": {"color": COLORS["streaming"], "marker": "s"},
}
RAY: tuple[Look, ...] = (
    {"color": COLORS["ray"], "marker": "^"},
    {"color": "#052c55", "marker": "D"},
    {"color": "#6ea3da", "marker": "v"},
    {"color": "#41576e", "marker": "P"},
)
SIZES = ("o", "s", "^", "D", "v", "P")
"""Marks of sizes, in ink: colours are for arms."""
HOLLOW: Look = {"marker": "X", "markerfacecolor": "none", "markersize": 8, "linestyle": "none"}
"""The mark of what was not measured."""
NICE = (1, 2, 5, 10)
APART = 0.09
"""Sizes closer than this share of the axis do not both get a label."""


def figures(scale: Scale) -> list[Figure]:
    """Draw an experiment with rows."""
    one_size = len({row["multiplier"] for row in scale.rows}) == 1
    shown = bars(scale) if one_size else [sizes(scale)]
    return [*shown, *([workers(scale)] if scale.strong or scale.weak else [])]


def bars(scale: Scale) -> list[Figure]:
    """Draw one size: speed and peak memory of each arm as bars."""
    where = at(scale.rows[0]["multiplier"])
    speeds = []
    for row in scale.rows:
        good = row["status"] == "ok"
        text = f"{formatting.fixed(rate(row), 0)} windows/s" if good else formatting.outcome(row["status"])
        speeds.append(Bar(row["label"], (rate(row) or 0.0) if good else 0.0, text, COLORS[row["arm"]]))
    memory = "Peak memory of the largest process, or node of Ray; hollow: what would have been needed."
    return [
        draw_bars("scale", speeds, f"Training windows per second at {where}."),
        draw_memory("scale-memory", scale.rows, memory, width=WIDTH),
    ]


def draw_memory(name: str, rows: Sequence[Row], caption: str, *, width: float) -> Figure:
    """Draw the peak memory of each row against the budget; hollow: what one out of memory would have needed."""
    limit = rows[0]["memory_limit_bytes"]
    shown = []
    for row in rows:
        good = row["status"] == "ok"
        value = row["peak_memory_bytes"] if good else needed_bytes(row)
        text = formatting.size(value) if good else f"{formatting.size(value)}, refused" if value else "refused"
        shown.append(Bar(row["label"], value or 0, text, COLORS.get(row["arm"], GREY), hollow=not good))
    return draw_bars(name, shown, caption, width=width, line=(float(limit), f"budget {formatting.size(limit)}"))


@apply_style()
def sizes(scale: Scale) -> Figure:
    """Draw several sizes: speed and peak memory against size, a line per arm."""
    chart = Canvas(figsize=(WIDTH, 3.3))
    chart.subplots_adjust(0.085, 0.5 / 3.3, 0.965, 1 - 0.72 / 3.3, wspace=0.3)
    left, right = chart.subplots(1, 2)
    limit = scale.rows[0]["memory_limit_bytes"]
    most = max(limit, *(needed_bytes(row) or row["peak_memory_bytes"] or 0 for row in scale.rows))
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    for (label, sized), look in zip(by_arm(scale.rows).items(), _looks(scale.rows), strict=True):
        good = [row for row in sized if row["status"] == "ok"]
        for axes, values in (
            (left, {row["multiplier"]: rate(row) for row in good}),
            (right, {row["multiplier"]: (row["peak_memory_bytes"] or 0) / unit for row in good}),
        ):
            known = {multiplier: value for multiplier, value in values.items() if value}
            axes.plot(list(known), list(known.values()), label=label, markersize=5.5, **look)
        _cross(left, {row["multiplier"]: 0.0 for row in sized if row["status"] != "ok"}, look)
        _cross(right, {row["multiplier"]: need / unit for row in sized if (need := needed_bytes(row))}, look)
    right.axhline(limit / unit, color=INK, linestyle="--", linewidth=0.9)
    right.annotate(
        f"budget of a node, {formatting.size(limit)}", (0.01, limit / unit), xycoords=right.get_yaxis_transform(),
        xytext=(0, 3), textcoords="offset points", fontsize=8.5,
    )  # fmt: skip
    for axes, title, shape in ((left, "windows per second", "{:,.0f}"), (right, f"peak memory, {name}", "{:g}")):
        axes.set_title(title, loc="left", fontsize=9, color=MUTED)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
        axes.yaxis.set_major_formatter(shape.format)
        axes.grid(axis="y")
        _label_sizes(axes, scale.rows)
    chart.legend(*left.get_legend_handles_labels(), loc="upper left", ncols=6, borderaxespad=0)
    caption = (
        "Training windows per second at the warm rate, and peak memory of the largest process, or node of Ray, against "
        "the size of the training set, in multiples and in windows (log scale)."
    )
    if any(row["status"] != "ok" for row in scale.rows):
        caption += (
            " A hollow cross: the arm did not end well; in memory at what it would have needed, if that is known."
        )
    return render(chart, "scale", caption)


@apply_style()
def workers(scale: Scale) -> Figure:
    """Draw strong and weak scaling: speed-up against workers, next to the ideal."""
    chart = Canvas(figsize=(WIDTH, 2.8))
    chart.subplots_adjust(0.07, 0.45 / 2.8, 0.84, 1 - 0.3 / 2.8, wspace=0.75)
    left, right = chart.subplots(1, 2)
    strong = [(f"{at(row['multiplier'])}, {PLACE[row['place']]}", row) for row in scale.strong]
    weak = [(f"{at(row['multiplier_per_worker'])} each, {PLACE[row['place']]}", row) for row in scale.weak]
    panels: tuple[tuple[Axes, Sequence[tuple[str, Speedup]], str], ...] = (
        (left, strong, "strong: the same set on more workers"),
        (right, weak, "weak: a set that grows with the workers"),
    )
    for axes, rows, title in panels:
        if rows:
            axes.set_title(title, loc="left", fontsize=9, color=MUTED)
            _speedups(axes, rows)
        else:
            axes.remove()
    caption = "Windows per second over those of the fewest workers, at the warm rate; dashed: the ideal."
    if any(row["place"] == "machine" for row in (*scale.strong, *scale.weak)):
        caption += f" On one machine all workers shared its {formatting.some(scale.cores, 'core')}."
    return render(chart, "workers", caption)


def _looks(rows: Sequence[Row]) -> Iterator[Look]:
    """Yield colour and mark of every arm."""
    rays = cycle(RAY)
    for sized in by_arm(rows).values():
        look = ALONE.get(sized[0]["arm"]) or next(rays)
        # What ran on the cluster without Ray has the colour of its arm, dashed.
        dashed: Look = {"linestyle": "--"} if not sized[0]["num_workers"] and sized[0]["place"] == "cluster" else {}
        yield look | dashed


def _cross(axes: Axes, heights: dict[int, float], look: Look) -> None:
    """Draw hollow crosses at sizes that an arm did not end well at."""
    axes.plot(list(heights), list(heights.values()), markeredgecolor=look["color"], clip_on=False, zorder=3, **HOLLOW)


def _label_sizes(axes: Axes, rows: Sequence[Row]) -> None:
    """Label a log axis with the sizes themselves as ticks, and how many windows they are."""
    multipliers = sorted({row["multiplier"] for row in rows})
    per_size = next((row["windows"] / row["multiplier"] for row in rows if row["windows"]), None)
    length = log(multipliers[-1] / multipliers[0])
    axes.set_xscale("log")
    room = (multipliers[-1] / multipliers[0]) ** 0.06
    axes.set_xlim(multipliers[0] / room, multipliers[-1] * room)
    labelled = multipliers[-1:]
    for size in reversed(multipliers[:-1]):
        if log(labelled[0] / size) > APART * length:
            labelled.insert(0, size)
    windows = {size: f"\n{_short(size * per_size)}" if per_size else "" for size in labelled}
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(labelled, [at(size) + windows[size] for size in labelled])


def _short(count: float) -> str:
    """Return 93,400 as 93k, 4,670,000 as 4.67M."""
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else f"{count:.0f}"


def _speedups(axes: Axes, rows: Sequence[tuple[str, Speedup]]) -> None:
    """Draw a line per size."""
    groups: dict[str, list[Speedup]] = {}
    for name, row in rows:
        groups.setdefault(name, []).append(row)
    most = max(row["workers"] for _, row in rows)
    for first in sorted({group[0]["workers"] for group in groups.values()}):
        axes.plot([first, most], [1, most / first], color=MUTED, linestyle="--", linewidth=0.9)
    for (text, group), mark, color in zip(groups.items(), cycle(SIZES), cycle((INK, MUTED, GREY)), strict=False):
        counts, speedups = [row["workers"] for row in group], [row["speedup"] for row in group]
        axes.plot(counts, speedups, label=text, marker=mark, color=color, markersize=5.5)
    axes.set(xlabel="workers", xticks=sorted({row["workers"] for _, row in rows}))
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{formatting.TIMES}")
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
