"""What scale experiments show: one row per place, arm and size, break-even, strong and weak scaling.

Pure functions of run records and of the rows made from them. A row is a dict, since it is stored in the experiment's
record. `place` is `machine` (one machine, simulated nodes included) or `cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sp500.config import RunConfig
from sp500.runs import cost
from sp500.runs.record import EpochMetrics, RunRecord

PLACES = ("machine", "cluster")
ARMS = ("in_memory", "streaming", "ray")
BASELINES = ("streaming", "in_memory")
"""Arms without Ray. Streaming comes first, since arrays end where memory does."""
Row = dict[str, Any]


def row(record: RunRecord, epochs: Sequence[EpochMetrics], memory_limit_bytes: int) -> Row:
    """What one arm did with one size.

    `settings` is the fingerprint of the run's settings at multiplier 1: rows that share it differ in size, arm and
    place alone. `hardware` is the machine, or a worker node of the cluster. `epoch_rates` are windows per second of
    each epoch, `epoch_seconds` is a whole pass at the warm rate, also where fewer steps were taken, and
    `writing_seconds` is the part of the setup that wrote shards, which the next run with the same data does not pay.
    """
    windows, warm = record.data.get("windows", {}).get("train"), record.warm_samples_per_second
    shards = record.data.get("shards") or {}
    return {
        "multiplier": record.config["data"]["multiplier"],
        "arm": record.arm,
        "place": "cluster" if cost.rented(record) else "machine",
        "hardware": _hardware(record),
        "settings": _settings(record),
        "status": record.status,
        "reason": record.reason,
        "num_workers": record.num_workers,
        "simulated_nodes": record.machine.simulated_nodes,
        "cores": record.machine.cpus,
        "windows": windows,
        "samples": record.samples,
        "seconds": record.seconds.total,
        "setup_seconds": record.seconds.setup,
        "writing_seconds": shards.get("writing_seconds", 0.0),
        "train_seconds": record.seconds.train,
        "samples_per_second": record.samples_per_second,
        "warm_samples_per_second": warm,
        "epoch_rates": _epoch_rates(epochs),
        "epoch_seconds": windows / warm if windows and warm else None,
        "memory_limit_bytes": memory_limit_bytes,
        "peak_memory_bytes": record.peak_memory_bytes,
        "peak_worker_bytes": record.peak_worker_bytes,
        "bytes_on_disk": shards.get("bytes"),
        "best_epoch": record.best_epoch,
        "test_mse": record.metrics.get("test", {}).get("mse"),
        "run": record.name,
    }


def fixed_seconds(seconds: float, writing: float, samples: int, rate: float) -> float:
    """Of a run's seconds those that do not grow with the windows: without training at the warm rate, and without
    writing shards, which the next run does not pay. The wait for the first batch belongs to them.
    """
    return seconds - writing - samples / rate


def break_even(rows: Sequence[Row]) -> list[Row]:
    """From how many windows trained Ray is sooner than one process, per place and number of workers.

    Both are taken as fixed seconds + windows / warm rate: the rate of the largest set, the median of what the rows
    leave over as fixed seconds, writing shards left out. One process is the baseline of the user's machine, and that of
    the cluster where none ran on the machine. `windows` is None where Ray is at no size sooner from there on.
    """
    alone = baseline(rows)
    laws = []
    for place, workers in sorted({(row["place"], row["num_workers"]) for row in rows if row["arm"] == "ray"}):
        ray = _law([row for row in rows if (row["place"], row["arm"], row["num_workers"]) == (place, "ray", workers)])
        if alone is None or ray is None:
            continue
        gained = 1 / alone["samples_per_second"] - 1 / ray["samples_per_second"]
        paid = ray["fixed_seconds"] - alone["fixed_seconds"]
        windows = max(paid / gained, 0.0) if gained > 0 else (0.0 if paid < 0 and gained == 0 else None)
        laws.append({"workers": workers, "place": place, "windows": windows, "alone": alone, "ray": ray})
    return laws


def baseline(rows: Sequence[Row]) -> Row | None:
    """Fixed seconds and rate of one process: on the user's machine before the cluster, streaming before arrays."""
    candidates = (
        _law([row for row in rows if (row["place"], row["arm"]) == (place, arm)])
        for place in PLACES
        for arm in BASELINES
    )
    return next((law for law in candidates if law), None)


def strong(rows: Sequence[Row]) -> list[Row]:
    """The same set on more workers: speed-up over the fewest workers, and efficiency per worker."""
    return _scaled(rows, lambda row: float(row["multiplier"]), "multiplier")


def weak(rows: Sequence[Row]) -> list[Row]:
    """A set that grows with the workers: samples/s over those of the fewest workers, and efficiency per worker."""
    return _scaled(rows, lambda row: row["multiplier"] / row["num_workers"], "multiplier_per_worker")


def _scaled(rows: Sequence[Row], share: Callable[[Row], float], name: str) -> list[Row]:
    """Rows of Ray of one place that share a size, where they have more than one number of workers."""
    groups: dict[tuple[str, float], dict[int, Row]] = {}
    for row in rows:
        if row["arm"] == "ray" and row["status"] == "ok" and row["warm_samples_per_second"]:
            groups.setdefault((row["place"], share(row)), {})[row["num_workers"]] = row
    scaled = []
    for (place, size), by_workers in sorted(groups.items()):
        if len(by_workers) < 2:
            continue
        first = by_workers[min(by_workers)]
        for workers, row in sorted(by_workers.items()):
            speedup = row["warm_samples_per_second"] / first["warm_samples_per_second"]
            scaled.append(
                {
                    name: size,
                    "place": place,
                    "workers": workers,
                    "samples_per_second": row["warm_samples_per_second"],
                    "speedup": speedup,
                    "efficiency": speedup * first["num_workers"] / workers,
                }
            )
    return scaled


def _law(rows: Sequence[Row]) -> Row | None:
    """Fixed seconds and rate of the rows of one arm; None where it never ended well."""
    ended = [row for row in rows if row["status"] == "ok" and row["warm_samples_per_second"]]
    if not ended:
        return None
    rate = max(ended, key=lambda row: int(row["multiplier"]))["warm_samples_per_second"]
    measured = ("seconds", "writing_seconds", "samples", "warm_samples_per_second")
    fixed = [fixed_seconds(*(row[key] for key in measured)) for row in ended]
    return {
        "arm": ended[0]["arm"],
        "place": ended[0]["place"],
        "fixed_seconds": median(fixed),
        "samples_per_second": rate,
    }


def _epoch_rates(epochs: Sequence[EpochMetrics]) -> list[float]:
    """Windows per second of each epoch, without the wait for its first batch."""
    timed = ((epoch.samples, epoch.train_seconds - epoch.first_batch_seconds) for epoch in epochs)
    return [samples / seconds for samples, seconds in timed if seconds > 0]


def _settings(record: RunRecord) -> str:
    data = {**record.config["data"], "multiplier": 1}
    return RunConfig.model_validate({**record.config, "data": data}).fingerprint


def _hardware(record: RunRecord) -> str:
    """A worker node of the cluster, or the machine: what decides how fast one worker is."""
    machine, cluster = record.machine, record.machine.cluster
    if not cost.rented(record):
        return f"{machine.cpus} cores, {machine.memory_bytes / cost.GIB:.0f} GiB"
    if not cluster.get("worker_CPU"):
        return "a pod"
    parts = [f"{cluster['worker_CPU']:g} CPUs", f"{cluster.get('worker_memory', 0) / cost.GIB:.1f} GiB"]
    if gpus := cluster.get("worker_GPU"):
        parts.append(f"{gpus:g} GPUs")
    return f"nodes with {', '.join(parts)}"
