"""Pair the arms of an experiment: what did the parallel one buy, and did the numbers stay the same?

Pure functions of run records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500.runs.record import RunRecord


def searches(
    sequential: RunRecord | None,
    parallel: RunRecord | None,
    sequential_seconds: float | None = None,
    parallel_seconds: float | None = None,
) -> dict[str, Any]:
    """Two sides of one search; null where a side did not run or was interrupted and resumed.

    Seconds default to the records' own totals (process start to record). `speedup` is sequential over parallel seconds,
    `efficiency` that per core of the parallel side; `metric_gap` the relative gap between the two best validation
    losses.
    """
    sides = [side for side in (sequential, parallel) if side is not None and side.search is not None]
    first = _seconds(sequential, sequential_seconds)
    second = _seconds(parallel, parallel_seconds)
    speedup = first / second if first and second else None
    cores = parallel.search["cores"] if parallel and parallel.search else None
    bests = [side.search["best"] for side in sides if side.search and side.search["best"]]
    both = len(bests) == 2
    return {
        "configs": sides[0].search["configs"] if sides and sides[0].search else None,
        "sequential_seconds": first,
        "parallel_seconds": second,
        "speedup": speedup,
        "efficiency": speedup / cores if speedup and cores else None,
        "same_best": bests[0]["id"] == bests[1]["id"] if both else None,
        "metric_gap": relative_gap(bests[0]["valid_loss"], bests[1]["valid_loss"]) if both else None,
    }


def newest_search(
    records: Sequence[RunRecord],
) -> tuple[RunRecord | None, RunRecord | None, RunRecord | None]:
    """Sequential side, parallel side, and the run that timed both, of the newest search among `records`, oldest first.

    Sides pair up by the search's key: the same configs on the same data from the same seeds. A side that was run again
    alone since counts from its own record, and the timing of both is left out.
    """
    ended = [record for record in records if record.search is not None and record.status == "ok"]
    if not ended:
        return None, None, None
    newest = ended[-1]
    assert newest.search is not None
    alike = [record for record in ended if record.search and record.search["key"] == newest.search["key"]]
    if newest.arm == "both":
        sides = newest.search["sides"]
        by_name = {record.name: record for record in alike}
        return by_name.get(sides["sequential"]), by_name.get(sides["parallel"]), newest
    by_arm = {record.arm: record for record in alike}
    return by_arm.get("sequential"), by_arm.get("parallel"), None


def relative_gap(first: float, second: float) -> float:
    """Distance of two numbers as a share of the larger."""
    larger = max(abs(first), abs(second))
    return abs(first - second) / larger if larger else 0.0


def _seconds(record: RunRecord | None, measured: float | None) -> float | None:
    """What a side took; None when it was resumed, since its last attempt is not the whole of it."""
    if record is None or record.search is None or record.search.get("resumed"):
        return None
    return measured if measured is not None else record.seconds.total
