"""What a scale experiment shows: one row per arm and size, break-even, strong and weak scaling.

Pure functions of run records and of the rows made from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from sp500.runs.record import RunRecord

ALONE = ("in_memory", "streaming")
Row = dict[str, Any]


def row(record: RunRecord, memory_limit_bytes: int) -> Row:
    """What one arm did with one size.

    `epoch_seconds` is a whole pass at the warm rate, also where fewer steps were taken; `writing_seconds` the part of
    the setup that wrote shards, which the next run with the same data does not pay.
    """
    windows, warm = record.data.get("windows", {}).get("train"), record.warm_samples_per_second
    shards = record.data.get("shards") or {}
    return {
        "multiplier": record.config["data"]["multiplier"],
        "arm": record.arm,
        "status": record.status,
        "reason": record.reason,
        "num_workers": record.num_workers,
        "simulated_nodes": record.machine.simulated_nodes,
        "windows": windows,
        "samples": record.samples,
        "seconds": record.seconds.total,
        "setup_seconds": record.seconds.setup,
        "writing_seconds": shards.get("writing_seconds", 0.0),
        "train_seconds": record.seconds.train,
        "samples_per_second": record.samples_per_second,
        "warm_samples_per_second": warm,
        "epoch_seconds": windows / warm if windows and warm else None,
        "memory_limit_bytes": memory_limit_bytes,
        "peak_memory_bytes": record.peak_memory_bytes,
        "peak_worker_bytes": record.peak_worker_bytes,
        "bytes_on_disk": shards.get("bytes"),
        "test_mse": record.metrics.get("test", {}).get("mse"),
        "run": record.name,
    }


def fixed_seconds(seconds: float, writing: float, samples: int, rate: float) -> float:
    """Of a run's seconds those that do not grow with the windows: without training at the warm rate, and without
    writing shards, which the next run does not pay. The wait for the first batch belongs to them.
    """
    return seconds - writing - samples / rate


def break_even(rows: Sequence[Row]) -> list[Row]:
    """From how many windows trained Ray is sooner than one process, per number of workers.

    Both are taken as fixed seconds + windows / warm rate: the rate of the largest set, the median of what the rows
    leave over as fixed seconds, writing shards left out. One process is the streaming arm, since the one in memory
    ends where memory does; only without it, in memory. `windows` is None where Ray is at no size sooner from there on.
    """
    alone = next((law for arm in reversed(ALONE) if (law := _law(rows, arm, 0))), None)
    found = []
    for workers in _workers(rows):
        ray = _law(rows, "ray", workers)
        if alone is None or ray is None:
            continue
        gained = 1 / alone["samples_per_second"] - 1 / ray["samples_per_second"]
        paid = ray["fixed_seconds"] - alone["fixed_seconds"]
        windows = max(paid / gained, 0.0) if gained > 0 else (0.0 if paid < 0 and gained == 0 else None)
        found.append({"workers": workers, "windows": windows, "alone": alone, "ray": ray})
    return found


def strong(rows: Sequence[Row]) -> list[Row]:
    """The same set on more workers: speed-up over the fewest workers, and efficiency per worker."""
    return _scaled(rows, lambda row: float(row["multiplier"]), per_worker=False)


def weak(rows: Sequence[Row]) -> list[Row]:
    """A set that grows with the workers: samples/s over those of the fewest workers, and efficiency per worker."""
    return _scaled(rows, lambda row: row["multiplier"] / row["num_workers"], per_worker=True)


def _scaled(rows: Sequence[Row], key: Any, *, per_worker: bool) -> list[Row]:
    """Rows of Ray that share a key, where they have more than one number of workers."""
    groups: dict[float, dict[int, Row]] = {}
    for one in rows:
        if one["arm"] == "ray" and one["status"] == "ok" and one["warm_samples_per_second"]:
            groups.setdefault(key(one), {})[one["num_workers"]] = one
    found = []
    for share, by_workers in sorted(groups.items()):
        if len(by_workers) < 2:
            continue
        first = by_workers[min(by_workers)]
        for workers, one in sorted(by_workers.items()):
            speedup = one["warm_samples_per_second"] / first["warm_samples_per_second"]
            found.append(
                {
                    "multiplier_per_worker" if per_worker else "multiplier": share,
                    "workers": workers,
                    "samples_per_second": one["warm_samples_per_second"],
                    "speedup": speedup,
                    "efficiency": speedup * first["num_workers"] / workers,
                }
            )
    return found


def _law(rows: Sequence[Row], arm: str, workers: int) -> Row | None:
    """Fixed seconds and rate of an arm; None where it never ended well."""
    ended = [
        one
        for one in rows
        if (one["arm"], one["num_workers"], one["status"]) == (arm, workers, "ok") and one["warm_samples_per_second"]
    ]
    if not ended:
        return None
    rate = max(ended, key=lambda one: int(one["multiplier"]))["warm_samples_per_second"]
    told = ("seconds", "writing_seconds", "samples", "warm_samples_per_second")
    fixed = [fixed_seconds(*(one[key] for key in told)) for one in ended]
    return {"arm": arm, "fixed_seconds": median(fixed), "samples_per_second": rate}


def _workers(rows: Sequence[Row]) -> list[int]:
    return sorted({one["num_workers"] for one in rows if one["arm"] == "ray"})
