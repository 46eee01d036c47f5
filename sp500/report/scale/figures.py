"""Speed and memory against the size of the dataset, and speed against workers, as figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from math import log

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator

from sp500 import formatting
from sp500.formatting import GIB, MIB
from sp500.report.plot_style import (
    COLORS,
    GREY,
    INK,
    LETTER,
    MUTED,
    RULE,
    WIDTH,
    Figure,
    Look,
    apply_style,
    bar,
    canvas,
    move_behind,
    render,
)
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
LINE = 11
"""Points between two lines of words."""
NICE = (1, 2, 5, 10)
APART = 0.09
"""Sizes closer than this share of the axis do not both get a label."""


def figures(scale: Scale) -> list[Figure]:
    """Draw an experiment with rows."""
    one_size = len({row["multiplier"] for row in scale.rows}) == 1
    return [bars(scale) if one_size else sizes(scale), *([workers(scale)] if scale.strong or scale.weak else [])]


@apply_style()
def bars(scale: Scale) -> Figure:
    """Draw one size: speed and peak memory of each arm as bars."""
    labels = [row["label"] for row in scale.rows]
    height = 0.35 + 0.25 * len(scale.rows)
    # Half of what the labels leave, less room for the numbers next to the bars.
    panel = (WIDTH - LETTER * max(map(len, labels)) - 0.1) / 2 - 1.0
    chart, left = canvas(height, labels, right=panel + 2.0, above=0.3)
    room = left.get_position()
    right = chart.add_axes((room.x1 + 1.0 / WIDTH, room.y0, room.width, room.height))
    right.set(yticks=[], ylim=left.get_ylim())
    looks, limit = _looks(scale.rows), scale.rows[0]["memory_limit_bytes"]
    largest = max(needed_bytes(row) or row["peak_memory_bytes"] or 0 for row in scale.rows)
    lacked = any(map(needed_bytes, scale.rows))
    most = max(limit, 1.02 * largest) * (1.2 if lacked else 1)  # what was lacked is in longer words
    for place, row in enumerate(scale.rows):
        state = "" if row["status"] == "ok" else formatting.outcome(row["status"])
        color = looks[row["label"]]["color"]
        memory = row["peak_memory_bytes"]
        bar(left, place, 0 if state else rate(row) or 0, state or formatting.fixed(rate(row), 0), color)
        if needed := needed_bytes(row):
            bar(right, place, needed, _need(row), color, hollow=True)
        else:
            peak, text = 0 if state else memory or 0, state or formatting.size(memory)
            bar(right, place, peak, text, color, at=move_behind(text, peak, limit, most / room.width / WIDTH))
    where = at(scale.rows[0]["multiplier"])
    for axes, title in ((left, f"windows per second, {where}"), (right, f"peak memory, {where}")):
        axes.set_title(title, loc="left", fontsize=9, color=MUTED)
    caption = "Training windows per second, and peak memory of the largest process, or node of Ray."
    right.set_xlim(0, most)
    caption += " Hollow: what a run that ran out of memory would have needed." if lacked else ""
    right.axvline(limit, color=INK, linestyle="--", linewidth=0.9)
    caption += f" Dashed: the budget of a node, {formatting.size(limit)}."
    return render(chart, "scale", caption)


@apply_style()
def sizes(scale: Scale) -> Figure:
    """Draw several sizes: speed and peak memory against size, a line per arm."""
    chart = Canvas(figsize=(WIDTH, 3.3))
    chart.subplots_adjust(0.085, 0.5 / 3.3, 0.965, 1 - 0.72 / 3.3, wspace=0.3)
    left, right = chart.subplots(1, 2)
    looks = _looks(scale.rows)
    for axes, title, draw in ((left, "windows per second", _speed), (right, "peak memory", _memory)):
        axes.set_title(title, loc="left", fontsize=9, color=MUTED)
        _label_sizes(axes, scale.rows)
        draw(axes, scale.rows, looks)
    lines = left.get_lines()[: len(looks)]
    chart.legend(lines, list(looks), loc="upper left", ncols=6, borderaxespad=0)
    ended = any(row["status"] != "ok" for row in scale.rows)
    crosses = (
        " A hollow cross: the arm did not end well at that size; where it ran out of memory it is drawn at what it "
        "would have needed."
    )
    caption = (
        "Training windows per second at the warm rate, and peak memory of the largest process, or node of Ray, against "
        f"the size of the training set, in multiples and in windows (log scale).{crosses if ended else ''}"
    )
    return render(chart, "scale", caption)


@apply_style()
def workers(scale: Scale) -> Figure:
    """Draw strong and weak scaling: speed-up against workers, next to the ideal."""
    chart = Canvas(figsize=(WIDTH, 2.8))
    chart.subplots_adjust(0.07, 0.45 / 2.8, 0.84, 1 - 0.3 / 2.8, wspace=0.75)
    left, right = chart.subplots(1, 2)
    several = len({row["place"] for row in (*scale.strong, *scale.weak)}) > 1

    def name(size: str, row: Speedup) -> tuple[str, Speedup]:
        return size + (f", {PLACE[row['place']]}" if several else ""), row

    strong = [name(at(row["multiplier"]), row) for row in scale.strong]
    weak = [name(f"{at(row['multiplier_per_worker'])} each", row) for row in scale.weak]
    panels = (
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


def _looks(rows: Sequence[Row]) -> dict[str, Look]:
    """Return colour and mark of every arm, under its label."""
    first = {name: sized[0]["arm"] for name, sized in by_arm(rows).items()}
    looks: dict[str, Look] = {}
    rays = islice(cycle(RAY), len(first))
    for name, sized in by_arm(rows).items():
        look = ALONE.get(first[name]) or next(rays)
        # What ran on the cluster without Ray has the colour of its arm, dashed.
        dashed: Look = {"linestyle": "--"} if first[name] in ALONE and sized[0]["place"] == "cluster" else {}
        looks[name] = look | dashed
    return looks


def _speed(axes: Axes, rows: Sequence[Row], looks: dict[str, Look]) -> None:
    """Draw lines from zero, with a cross for every run that did not end well, which has no speed."""
    arms = by_arm(rows)
    for name, sized in arms.items():
        good = [row for row in sized if row["status"] == "ok" and rate(row)]
        rates = [rate(row) or 0 for row in good]
        axes.plot([row["multiplier"] for row in good], rates, markersize=5.5, **looks[name])
    top = max((rate(row) or 0 for row in rows if row["status"] == "ok"), default=0) or 1
    bad = {name: failed for name, sized in arms.items() if (failed := [row for row in sized if row["status"] != "ok"])}
    axes.axhline(0, color=RULE, linewidth=0.8)
    for line, (name, sized) in enumerate(bad.items()):
        states = formatting.join(list(dict.fromkeys(formatting.outcome(row["status"]) for row in sized)))
        _cross(axes, [(row["multiplier"], 0.0) for row in sized], f"{name}: {states}", looks[name], 8 + LINE * line)
    axes.set(ylim=(0, 1.08 * top))
    _ticks(axes, top, lambda value: f"{value:,.0f}")


def _cross(axes: Axes, points: Sequence[tuple[float, float]], text: str, look: Look, above: float = 0) -> None:
    """Draw hollow crosses, and words next to the first or the last, on the side that has more room."""
    places, heights = zip(*points, strict=True)
    axes.plot(places, heights, markeredgecolor=look["color"], clip_on=False, zorder=3, **HOLLOW)
    low, high = axes.get_xlim()
    left = places[0] * places[-1] > low * high
    axes.annotate(
        text,
        points[0 if left else -1],
        xytext=(-8 if left else 8, above),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=8.5,
    )


def _need(row: Row) -> str:
    """Return what a run that ran out of memory would have needed, in words."""
    needed = needed_bytes(row)
    return f"would need {formatting.size(needed)}" if needed else "out of memory, need not known"


def _memory(axes: Axes, rows: Sequence[Row], looks: dict[str, Look]) -> None:
    """Draw lines from zero, the budget across, and a cross at what an arm that ran out of memory would have needed."""
    limit = rows[0]["memory_limit_bytes"]
    top = max(limit, *(needed_bytes(row) or row["peak_memory_bytes"] or 0 for row in rows))
    unit, name = (GIB, "GiB") if top >= GIB else (MIB, "MiB")
    for arm, sized in by_arm(rows).items():
        peaks = {row["multiplier"]: (row["peak_memory_bytes"] or 0) / unit for row in sized if row["status"] == "ok"}
        known = {multiplier: peak for multiplier, peak in peaks.items() if peak}
        axes.plot(list(known), list(known.values()), markersize=5.5, **looks[arm])
        for row in sized:
            if row["status"] == "out_of_memory":  # one whose need is not known: at the top, above the budget
                height = (needed_bytes(row) or 1.05 * top) / unit
                _cross(axes, [(row["multiplier"], height)], _need(row), looks[arm], above=LINE)
    axes.axhline(limit / unit, color=INK, linestyle="--", linewidth=0.9)
    place, across = (0.01, limit / unit), axes.get_yaxis_transform()
    text = f"budget of a node, {formatting.size(limit)}"
    axes.annotate(text, place, xycoords=across, xytext=(0, 3), textcoords="offset points", fontsize=8.5)
    axes.set(ylim=(0, 1.1 * top / unit))
    _ticks(axes, top / unit, lambda value: f"{value:g} {name}" if value else "0")


def _ticks(axes: Axes, top: float, show: Callable[[float], str]) -> None:
    places = [float(place) for place in MaxNLocator(5, steps=NICE).tick_values(0, top) if 0 <= place <= 1.05 * top]
    axes.set_yticks(places, [show(place) for place in places])
    axes.grid(axis="y")


def _label_sizes(axes: Axes, rows: Sequence[Row]) -> None:
    """Label a log axis with the sizes themselves as ticks, and how many windows they are."""
    multipliers = sorted({row["multiplier"] for row in rows})
    per_size = next((row["windows"] / row["multiplier"] for row in rows if row["windows"]), None)
    length = log(multipliers[-1] / multipliers[0])
    axes.set_xscale("log")
    axes.set_xlim(
        multipliers[0] * (multipliers[0] / multipliers[-1]) ** 0.06,
        multipliers[-1] * (multipliers[-1] / multipliers[0]) ** 0.06,
    )
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
