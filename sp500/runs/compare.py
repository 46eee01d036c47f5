"""Pair the arms of a search: what did packing buy, what did Ray buy, and did the numbers stay the same?

Pure functions of run records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp500.runs.record import RunRecord

ARMS = ("sequential", "packed", "ray")
"""One config at a time in one process; packs in processes of this machine; packs under Ray Tune."""
MORE_CORES = (1, 2, 4, 8)
"""Break-evens are given for as many times the cores that Ray had."""
Row = dict[str, Any]


def searches(records: Mapping[str, RunRecord], timed: Mapping[str, Mapping[str, float | None]] | None = None) -> Row:
    """The arms of one search, by arm; what needs an arm that did not run or was interrupted is None.

    `timed` has the seconds and CPU seconds of an arm's process, where it was timed from outside; the seconds default to
    the record's own total (process start to record). `arms` has a row per arm, `packing_speedup` is sequential over
    packed seconds, `ray_speedup` packed over Ray's; `metric_gap` is the largest relative gap of the best validation
    losses.
    """
    ran = [(arm, records[arm]) for arm in ARMS if arm in records and records[arm].search]
    rows = {arm: _row(record, (timed or {}).get(arm, {})) for arm, record in ran}
    for row in rows.values():
        row |= {f"speedup_over_{arm}": _over(rows.get(arm), row) for arm in ("sequential", "packed")}
    bests = [record.search["best"] for _, record in ran if record.search and record.search["best"]]
    losses = [best["valid_loss"] for best in bests]
    several = len(bests) > 1
    return {
        "configs": ran[0][1].search["configs"] if ran and ran[0][1].search else None,
        "arms": rows or None,
        "packing_speedup": _over(rows.get("sequential"), rows.get("packed")),
        "ray_speedup": _over(rows.get("packed"), rows.get("ray")),
        "same_best": len({best["id"] for best in bests}) == 1 if several else None,
        "metric_gap": relative_gap(min(losses), max(losses)) if several else None,
        "break_even": break_even(rows.get("packed"), rows.get("ray")),
    }


def break_even(packed: Row | None, ray: Row | None) -> Row | None:
    """Where Ray Tune takes as long as packs without it, from one measured search of each; None without both.

    An arm is taken as start + configs * work per config / cores, with the start and the work that were measured.
    `cores` is how many Ray needs for as many configs as were tried (None: its start alone takes longer), `configs` from
    how many configs it is sooner on one, two, four and eight times its cores (None: at no number).
    """
    rows = (packed, ray)
    if packed is None or ray is None or any(row["start_seconds"] is None for row in (packed, ray)):
        return None
    work = [row["work_seconds"] / row["configs"] for row in rows if row]
    left = packed["seconds"] - ray["start_seconds"]
    configs = []
    for times in MORE_CORES:
        cores = times * ray["cores"]
        gained = work[0] / packed["cores"] - work[1] / cores
        paid = ray["start_seconds"] - packed["start_seconds"]
        configs.append({"cores": cores, "configs": max(paid / gained, 0.0) if gained > 0 else None})
    return {"cores": ray["work_seconds"] / left if left > 0 else None, "configs": configs}


def newest_search(records: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], RunRecord | None]:
    """Of the newest search among `records`, oldest first: its arms, and the run that timed all of them if there is one.

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
        names: dict[str, str] = newest.search["runs"]
        return {arm: by_name[name] for arm, name in names.items() if name in by_name}, newest
    return {record.arm: record for record in alike if record.arm in ARMS}, None


def relative_gap(first: float, second: float) -> float:
    """Distance of two numbers as a share of the larger."""
    larger = max(abs(first), abs(second))
    return abs(first - second) / larger if larger else 0.0


def _row(record: RunRecord, timed: Mapping[str, float | None]) -> Row:
    """One arm. Its work is the seconds of its trials on their cores, its start all else.

    Nothing is known of the time of one that was resumed, since its last attempt is not the whole of it.
    """
    search = record.search or {}
    whole = not search.get("resumed")
    seconds = timed.get("seconds", record.seconds.total) if whole else None
    work, cores, configs = search.get("trial_seconds"), search["cores"], search["configs"]
    split = seconds is not None and work is not None and cores
    return {
        "seconds": seconds,
        "cpu_seconds": timed.get("cpu_seconds") if whole else None,
        "cores": cores,
        "configs": configs,
        "trials_per_second": configs / seconds if seconds else None,
        "start_seconds": max(seconds - work / cores, 0.0) if split else None,
        "work_seconds": work if split else None,
    }


def _over(first: Row | None, second: Row | None) -> float | None:
    return first["seconds"] / second["seconds"] if first and second and first["seconds"] and second["seconds"] else None
