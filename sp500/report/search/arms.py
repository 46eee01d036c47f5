"""Comparison of the arms of a search: the gain of packing and of Ray, and from how many configs on Ray would pay.

Every sentence is computed from the measured seconds, and says "slower" or "run this" if that is so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sp500 import formatting
from sp500.formatting import TIMES, fixed, gap, join, name_command, percent, seconds, some
from sp500.report.tables import Table, table
from sp500.runs import compare
from sp500.runs.compare import ARMS
from sp500.runs.results import ArmRow, SearchSummary

NAMES = {"sequential": "one after another", "packed": "packed without Ray", "ray": "Ray Tune"}
PROGRAM_NAMES = {"sequential": "one after another", "parallel": "several at once", "ray": "on Ray"}
MODEL = (
    "Each arm is taken as start + configs \u00d7 work per config / cores. Work is the measured seconds of the trials, "
    "start is all else, also the time in which a core had nothing left to do. Assumed: the start does not grow with "
    "configs or cores, further configs are like these, in packs that fill all cores, and further cores are as fast."
)
ROUNDING = "Repeat with --train.dtype float64 to see whether that is rounding."
Numbers = Mapping[str, Any]
"""Result of `compare.searches`."""


def name_arms(search: SearchSummary | None) -> Mapping[str, str]:
    """Return the names of a search's arms for a reader: those of programs if it tried programs."""
    return PROGRAM_NAMES if search and search.get("metric") else NAMES


def sentences(numbers: Numbers) -> list[str]:
    """Return what packing and Ray gained, whether the arms found the same, and where Ray breaks even."""
    arms = numbers["arms"] or {}
    if not arms:
        return []
    lines = [*_busy(arms), _split(numbers), _agreement(numbers), *_break_even(numbers)]
    if missing := [arm for arm in ARMS if arm not in arms]:
        flags = join([f"--mode {arm}" for arm in missing])
        lines.append(f"To compare packing and Ray Tune, run {name_command('tune')} with {flags} too.")
    return [sentence for sentence in lines if sentence]


def describe_programs(numbers: Numbers, metric: str) -> list[str]:
    """Return what the arms of a search of programs took, and by how much several at once and Ray were faster."""
    arms = numbers["arms"] or {}
    times = {arm: row["speedup_over_sequential"] for arm, row in arms.items() if arm != "sequential"}
    took = [
        f"{seconds(row['seconds'])} {PROGRAM_NAMES[arm]} ({some(row['cores'], 'core')}"
        + (f", {times[arm]:.1f}{TIMES} as fast" if times.get(arm) else "")
        + ")"
        for arm, row in arms.items()
        if row["seconds"] is not None
    ]
    lines = [f"{some(numbers['configs'], 'program')} took {join(took)}."] if took else []
    lines += [
        f"Interrupted, so without a time that compares: {PROGRAM_NAMES[arm]}."
        for arm in arms
        if arms[arm]["seconds"] is None
    ]
    if missing := [f"--mode {arm}" for arm in PROGRAM_NAMES if arm not in arms]:
        lines.append(f"To compare, run the same search under another --name with {join(missing)} too.")
    agreement = _agreement(numbers, f"values of {metric}", "")
    return [line for line in (*_busy(arms, PROGRAM_NAMES), *lines, agreement) if line]


def halving(search: SearchSummary) -> list[str]:
    """Return which part of which packs went on to the end; nothing for a search without successive halving."""
    if not search.get("halving"):
        return []
    packs = [f"{count} of {size}" for size, count in Counter(search["packs"]).items()]
    return [
        f"Successive halving: in each pack the best 1/{search['halving']} went on, twice. Packs by their number of "
        f"configs: {join(packs)}. Their sizes do not depend on the cores."
    ]


def describe_stopped(search: SearchSummary) -> list[str]:
    """Return how many configs a stopper ended at which epoch; nothing for a search without one."""
    if (stopped := search.get("stopped")) is None:
        return []
    ended = [f"{count} after epoch {rung}" for rung, count in stopped.items()]
    return [f"Stopped early: {join(ended) if ended else 'none'} of {some(search['configs'], 'config')}."]


def arms_table(numbers: Numbers, names: Mapping[str, str] = NAMES) -> Table:
    """Return a table with a row per arm."""
    lines = [
        {
            "Arm": names[arm],
            "Seconds": seconds(row["seconds"]),
            "CPU seconds": fixed(row["cpu_seconds"], 0),
            "Cores": str(row["cores"]),
            "Configs/s": fixed(row["trials_per_second"]),
            "Speed-up over sequential": formatting.ratio(row["speedup_over_sequential"]),
            "Speed-up over packed": formatting.ratio(row["speedup_over_packed"]),
            "Start": seconds(row["start_seconds"]),
            "Work": seconds(row["work_seconds"]),
        }
        for arm, row in (numbers["arms"] or {}).items()
    ]
    note = (
        "Seconds: from start to end of the process. Work: of all trials together. Start: seconds \u2212 work / cores. "
        "Each arm ran once: small differences may be noise."
    )
    return table("The arms of the search", lines, text=("Arm",), note=note)


def break_even_table(numbers: Numbers) -> Table | None:
    """Return a table of the number of configs from which Ray Tune is sooner, by its cores."""
    crossing = numbers["break_even"]
    if not crossing:
        return None
    lines = [
        {"Cores of Ray Tune": str(row["cores"]), "Sooner from": _configs(row["configs"])} for row in crossing["configs"]
    ]
    cores = numbers["arms"]["packed"]["cores"]
    caption = f"Ray Tune against packs without it on {some(cores, 'core')}"
    return table(caption, lines, text=("Sooner from",), note=MODEL)


def _busy(arms: Mapping[str, ArmRow], names: Mapping[str, str] = NAMES) -> list[str]:
    """Return the warning that the seconds of some arms are not reliable, and why; before them."""
    reasons = []
    for arm, row in arms.items():
        if compare.busy(row):
            others, own = row.get("others_share"), row.get("cpu_share")
            parts = [f"other programs took {percent(others, 0)} of the cores"] if others else []
            parts += [f"its trials computed in {percent(own, 0)} of their time"] if own is not None else []
            reasons.append(f"{names[arm]}: {join(parts)}")
    if not reasons:
        return []
    return [
        f"The machine was busy: the times of the arms are not reliable ({'; '.join(reasons)}), and no break-even is "
        "given. Run the search again on a quiet machine."
    ]


def _split(numbers: Numbers) -> str:
    """Return the speed-up in its parts, if the arms were timed."""
    arms, configs = numbers["arms"], some(numbers["configs"], "config")
    timed = [
        f"{seconds(row['seconds'])} {NAMES[arm]} ({some(row['cores'], 'core')})"
        for arm, row in arms.items()
        if row["seconds"] is not None
    ]
    cut = [NAMES[arm] for arm, row in arms.items() if row["seconds"] is None]
    apart = f" Interrupted, so without a time that compares: {join(cut)}." if cut else ""
    if not timed:
        return apart.strip()
    cores = f" on {some(arms['packed']['cores'], 'core')}" if "packed" in arms else ""
    parts = {
        f"packing{cores}": (numbers["packing_speedup"], "one after another"),
        "Ray Tune": (numbers["ray_speedup"], "packing"),
    }
    bought = [_describe_gain(name, times, over) for name, (times, over) in parts.items() if times is not None]
    head = f"{join(bought)}: " if bought else ""
    return f"{head[:1].upper()}{head[1:]}{configs} took {join(timed)}.{apart}"


def _describe_gain(name: str, times: float, over: str) -> str:
    """Return 'packing was 3.4 times as fast as one after another'."""
    if f"{times:.1f}" == "1.0":
        return f"{name} took about as long as {over} (1.0{TIMES})"
    if times < 1:
        return f"{name} took {1 / times:.1f}{TIMES} as long as {over}"
    return f"{name} was {times:.1f}{TIMES} as fast as {over}"


def _agreement(numbers: Numbers, values: str = "validation losses", way_out: str = f" {ROUNDING}") -> str:
    """Return whether the arms found the same; `values`: what they compare by, `way_out`: what to do if not."""
    same, distance = numbers["same_best"], numbers["metric_gap"]
    if same is None:
        return ""
    apart = f"agree within {gap(distance)}" if same else f"differ by {100 * (distance or 0):.1g}%"
    losses = apart if distance else "are equal"
    best = "the same best config" if same else "different best configs"
    return f"The arms found {best}; the best {values} {losses}.{'' if same else way_out}"


def _break_even(numbers: Numbers) -> list[str]:
    crossing = numbers["break_even"]
    if not crossing:
        return []
    arms, rows = numbers["arms"], crossing["configs"]
    packed = f"packs without it on {some(arms['packed']['cores'], 'core')}"
    pays = next((row for row in rows if row["configs"] is not None), None)
    if pays is None:
        most = some(rows[-1]["cores"], "core")
        return [
            f"Ray Tune would be sooner than {packed} at no number of configs like these on up to {most}.",
            _cores(numbers),
        ]
    cores, where = some(pays["cores"], "core"), f"from {_configs(pays['configs'])} like these"
    never = "" if pays is rows[0] else f"; on {some(rows[0]['cores'], 'core')} it never would"
    return [f"Ray Tune on {cores} would be sooner than {packed} {where}{never}, by one run of each.", _cores(numbers)]


def describe_break_even(numbers: Numbers) -> str:
    """Return from where Ray pays, in short; '' if that is not known."""
    if not (crossing := numbers["break_even"]):
        return ""
    pays = next((row for row in crossing["configs"] if row["configs"] is not None), None)
    if pays is None:
        return f"Ray never pays on up to {some(crossing['configs'][-1]['cores'], 'core')}."
    return f"Ray pays from {_configs(pays['configs'])} on {some(pays['cores'], 'core')}."


def _cores(numbers: Numbers) -> str:
    cores, configs = numbers["break_even"]["cores"], some(numbers["configs"], "config")
    if cores is None:
        start = seconds(numbers["arms"]["ray"]["start_seconds"])
        return f"For these {configs} no number of cores makes up for its start of {start}."
    return f"For these {configs} it needs about {some(max(math.ceil(cores), 1), 'core')}."


def _configs(count: float | None) -> str:
    return "at no number of configs" if count is None else f"about {some(max(math.ceil(count), 1), 'config')}"
