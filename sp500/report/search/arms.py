"""Comparison of the arms of a search: the gain of packing and of Ray, and from how many configs on Ray would pay.

Every sentence is computed from the measured seconds, and says "slower" or "run this" if that is so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sp500 import formatting
from sp500.formatting import fixed, gap, join, percent, seconds, some
from sp500.report.tables import Table, table
from sp500.runs import compare
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


def sentences(numbers: Numbers, search: SearchSummary | None = None) -> list[str]:
    """Return what each arm took, whether they found the same, and where Ray breaks even."""
    arms, names = numbers["arms"] or {}, name_arms(search)
    if not arms:
        return []
    timed = {arm: row for arm, row in arms.items() if row["seconds"] is not None}
    took = [f"{seconds(row['seconds'])} {names[arm]} ({some(row['cores'], 'core')})" for arm, row in timed.items()]
    count = some(numbers["configs"], "program" if names is PROGRAM_NAMES else "config")
    cut, missing = [names[arm] for arm in arms if arm not in timed], [arm for arm in names if arm not in arms]
    lines = [
        *_busy(arms, names),
        f"{count} took {join(took)}." if took else "",
        f"Interrupted, so without a time that compares: {join(cut)}." if cut else "",
        _agreement(numbers, search),
        describe_break_even(numbers),
        f"Not run: {join([f'--mode {arm}' for arm in missing])}." if missing else "",
    ]
    return [line for line in lines if line]


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


def arms_table(numbers: Numbers, names: Mapping[str, str]) -> Table:
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
    caption = f"From how many configs Ray Tune is sooner than packs without it on {some(cores, 'core')}"
    return table(caption, lines, text=("Cores of Ray Tune", "Sooner from"), note=MODEL)


def _busy(arms: Mapping[str, ArmRow], names: Mapping[str, str]) -> list[str]:
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


def _agreement(numbers: Numbers, search: SearchSummary | None) -> str:
    """Return whether the arms found the same; of configs also what to do if not."""
    same, distance = numbers["same_best"], numbers["metric_gap"]
    if same is None:
        return ""
    metric = search and search.get("metric")
    values = f"values of {metric}" if metric else "validation losses"
    apart = f"agree within {gap(distance)}" if same else f"differ by {100 * (distance or 0):.1g}%"
    best = "the same best config" if same else "different best configs"
    way_out = "" if same or metric else f" {ROUNDING}"
    return f"The arms found {best}; the best {values} {apart if distance else 'are equal'}.{way_out}"


def describe_break_even(numbers: Numbers) -> str:
    """Return from where Ray pays, in short; '' if that is not known."""
    if not (crossing := numbers["break_even"]):
        return ""
    pays = next((row for row in crossing["configs"] if row["configs"] is not None), None)
    if pays is None:
        return f"Ray never pays on up to {some(crossing['configs'][-1]['cores'], 'core')}."
    packed = some(numbers["arms"]["packed"]["cores"], "core")
    return f"Ray pays from {_configs(pays['configs'])} on {some(pays['cores'], 'core')}, against packs on {packed}."


def _configs(count: float | None) -> str:
    return "at no number of configs" if count is None else f"about {some(max(math.ceil(count), 1), 'config')}"
