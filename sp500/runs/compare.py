"""Pair the arms of a search: what did packing buy, what did Ray buy, and did the numbers stay the same?

Pure functions of run records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sp500.runs.record import RunRecord
from sp500.runs.results import ArmRow, ConfigsOnCores, SearchBreakEven, SearchComparison, SearchSummary

ARMS = ("sequential", "packed", "ray")
"""One config at a time in one process; packs in processes of this machine; packs under Ray Tune."""
MORE_CORES = (1, 2, 4, 8)
"""Break-evens are given for as many times the cores that Ray had."""


def searches(
    records: Mapping[str, RunRecord], timed: Mapping[str, Mapping[str, float | None]] | None = None
) -> SearchComparison:
    """The arms of one search, by arm; what needs an arm that did not run or was interrupted is None.

    `timed` has the seconds and CPU seconds of an arm's process, where it was timed from outside; the seconds default to
    the record's own total (process start to record). `arms` has a row per arm, `packing_speedup` is sequential over
    packed seconds, `ray_speedup` packed over Ray's; `metric_gap` is the largest relative gap of the best validation
    losses.
    """
    ran = {arm: search for arm in ARMS if arm in records and (search := records[arm].search)}
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
    """Where Ray Tune takes as long as packs without it, from one measured search of each; None without both.

    An arm is taken as start + configs * work per config / cores, with the start and the work that were measured.
    `cores` is how many Ray needs for as many configs as were tried (None: its start alone takes longer), `configs` from
    how many configs it is sooner on one, two, four and eight times its cores (None: at no number).
    """
    if packed is None or ray is None or packed["seconds"] is None:
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
        return {arm: by_name[name] for arm, name in newest.search["runs"].items() if name in by_name}, newest
    return {record.arm: record for record in alike if record.arm in ARMS}, None


def relative_gap(first: float, second: float) -> float:
    """Distance of two numbers as a share of the larger."""
    larger = max(abs(first), abs(second))
    return abs(first - second) / larger if larger else 0.0


def _row(record: RunRecord, search: SearchSummary, timed: Mapping[str, float | None]) -> ArmRow:
    """One arm. Its work is the seconds of its trials on their cores, its start all else.

    Nothing is known of the time of one that was resumed, since its last attempt is not the whole of it.
    """
    whole = not search["resumed"]
    seconds = timed.get("seconds", record.seconds.total) if whole else None
    work, cores, configs = search["trial_seconds"], search["cores"], search["configs"]
    return {
        "seconds": seconds,
        "cpu_seconds": timed.get("cpu_seconds") if whole else None,
        "cores": cores,
        "configs": configs,
        "trials_per_second": configs / seconds if seconds else None,
        "start_seconds": max(seconds - work / cores, 0.0) if seconds is not None and cores else None,
        "work_seconds": work if seconds is not None and cores else None,
    }


def _over(first: ArmRow | None, second: ArmRow | None) -> float | None:
    return first["seconds"] / second["seconds"] if first and second and first["seconds"] and second["seconds"] else None
