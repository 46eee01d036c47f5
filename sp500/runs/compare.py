"""Pair the arms of a search: what did packing buy, what did Ray buy, and did the numbers stay the same?

Pure functions of run records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp500.runs.record import RunRecord
from sp500.runs.results import ArmRow, ConfigsOnCores, SearchBreakEven, SearchComparison, SearchSummary

ARMS = ("sequential", "packed", "ray")
"""One config at a time in one process; packs in processes of this machine; packs under Ray Tune."""
EVERY_ARM = ("sequential", "packed", "parallel", "ray")
"""Those, and of programs: several at once on this machine."""
MOST_OTHERS, LEAST_CPU = 0.1, 0.8
"""Share of the machine's cores that others may take, and of its seconds that a trial has to compute, on a machine whose
times can be relied on."""
MORE_CORES = (1, 2, 4, 8)
"""Break-evens are given for as many times the cores that Ray had."""


def searches(
    records: Mapping[str, RunRecord], timed: Mapping[str, Mapping[str, float | None]] | None = None
) -> SearchComparison:
    """Return the arms of one search, by arm; what needs an arm that did not run or was interrupted is None.

    `timed` has the seconds and CPU seconds of an arm's process, if it was timed from outside; the seconds default to
    the record's own total (process start to record). `arms` has a row per arm, `packing_speedup` is sequential over
    packed seconds, `ray_speedup` packed over Ray's; `metric_gap` is the largest relative gap of the best validation
    losses.
    """
    ran = {arm: search for arm in EVERY_ARM if arm in records and (search := records[arm].search)}
    rows = {arm: _row(records[arm], search, (timed or {}).get(arm, {})) for arm, search in ran.items()}
    for row in rows.values():
        row["speedup_over_sequential"] = _over(rows.get("sequential"), row)
        row["speedup_over_packed"] = _over(rows.get("packed"), row)
    bests = [search["best"] for search in ran.values()]
    losses = [best["valid_loss"] for best in bests]
    several = len(bests) > 1
    return {
        "configs": next((search["configs"] for search in ran.values()), None),
        "arms": rows or None,
        "packing_speedup": _over(rows.get("sequential"), rows.get("packed")),
        "ray_speedup": _over(rows.get("packed"), rows.get("ray")),
        "same_best": len({best["id"] for best in bests}) == 1 if several else None,
        "metric_gap": relative_gap(min(losses), max(losses)) if several else None,
        "break_even": break_even(rows.get("packed"), rows.get("ray")),
    }


def break_even(packed: ArmRow | None, ray: ArmRow | None) -> SearchBreakEven | None:
    """Return the cores, and the configs, with which Ray Tune is as fast as packs without it.

    Measured by one search of each; None without both, and if one ran on a busy machine.

    The seconds of an arm are start + configs * work per config / cores, with the start and the work that were measured.
    `cores` is how many Ray needs for as many configs as were tried (None: its start alone takes longer), `configs` from
    how many configs it is sooner on one, two, four and eight times its cores (None: at no number).
    """
    if packed is None or ray is None or packed["seconds"] is None or busy(packed) or busy(ray):
        return None
    start, ray_start = packed["start_seconds"], ray["start_seconds"]
    work, ray_work = packed["work_seconds"], ray["work_seconds"]
    if start is None or ray_start is None or work is None or ray_work is None:
        return None
    left = packed["seconds"] - ray_start
    configs: list[ConfigsOnCores] = []
    for times in MORE_CORES:
        cores = times * ray["cores"]
        gained = work / packed["configs"] / packed["cores"] - ray_work / ray["configs"] / cores
        configs.append({"cores": cores, "configs": max((ray_start - start) / gained, 0.0) if gained > 0 else None})
    return {"cores": ray_work / left if left > 0 else None, "configs": configs}


def busy(row: Mapping[str, Any] | None) -> bool:
    """Return whether other programs kept the machine busy, so that an arm's seconds are not reliable.

    Rows of earlier versions have no such measurement, and count.
    """
    others, own = (row.get(name) if row else None for name in ("others_share", "cpu_share"))
    return (others or 0.0) > MOST_OTHERS or (own is not None and own < LEAST_CPU)


def timings(records: Sequence[RunRecord]) -> dict[str, ArmRow]:
    """Return what the arms of searches took by the clock of the process that ran them, by the arm's run."""
    timed: dict[str, ArmRow] = {}
    for record in records:
        if record.search and record.arm == "all":
            rows, runs = record.search.get("arms") or {}, record.search["runs"]
            timed |= {runs[arm]: row for arm, row in rows.items() if arm in runs}
    return timed


def split_seconds(record: RunRecord, timed: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return seconds of a search's arm from start to end, its start, and its work: the sum of its trials' seconds.

    The start is all else than work / cores. `timed` is the arm's process by an outer clock, if there was one; else
    the record's own total counts. None for all of one that was resumed, since its last attempt is not the whole of it.
    """
    assert record.search is not None
    if record.search["resumed"]:
        return None, None, None
    seconds: float | None = timed.get("seconds", record.seconds.total)
    work, cores = record.search["trial_seconds"], record.search["cores"]
    if seconds is None or not cores:
        return seconds, None, None
    return seconds, max(seconds - work / cores, 0.0), work


def newest_search(records: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], RunRecord | None]:
    """Return the newest search among `records`, oldest first: its arms, and the run that timed them all, if any.

    Arms pair up by the search's key: the same configs on the same data from the same seeds. An arm that was run again
    alone since counts from its own record, and the timing of all is left out.
    """
    ended = [record for record in records if record.search is not None and record.status == "ok"]
    if not ended:
        return {}, None
    newest = ended[-1]
    assert newest.search is not None
    alike = [record for record in ended if record.search and record.search["key"] == newest.search["key"]]
    if newest.arm == "all":
        by_name = {record.name: record for record in alike}
        return {arm: by_name[name] for arm, name in newest.search["runs"].items() if name in by_name}, newest
    return {record.arm: record for record in alike if record.arm in EVERY_ARM}, None


def relative_gap(first: float, second: float) -> float:
    """Return the distance of two numbers as a share of the larger."""
    larger = max(abs(first), abs(second))
    return abs(first - second) / larger if larger else 0.0


def _row(record: RunRecord, search: SearchSummary, timed: Mapping[str, float | None]) -> ArmRow:
    """Return one arm, and whether its machine was busy with other things."""
    seconds, start, work = split_seconds(record, timed)
    configs = search["configs"]
    return {
        "seconds": seconds,
        "cpu_seconds": timed.get("cpu_seconds") if seconds is not None else None,
        "others_share": timed.get("others_share"),
        "cpu_share": search.get("cpu_share"),
        "cores": search["cores"],
        "configs": configs,
        "trials_per_second": configs / seconds if seconds else None,
        "start_seconds": start,
        "work_seconds": work,
    }


def _over(first: ArmRow | None, second: ArmRow | None) -> float | None:
    return first["seconds"] / second["seconds"] if first and second and first["seconds"] and second["seconds"] else None
