"""Summary of scale experiments: one row per place, arm and size, break-even, strong and weak scaling.

Pure functions of run records and of the rows made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from sp500.config import RunConfig
from sp500.formatting import some
from sp500.machine.system import WATCHED
from sp500.plugins import source
from sp500.runs import cost
from sp500.runs.compare import busy
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.results import BreakEven, Law, ScaleRow, Speedup, StrongScaling, WeakScaling
from sp500.suspicion import find_signs

PLACES = ("machine", "cluster")
ARMS = ("in_memory", "streaming", "ray")
BASELINES = ("streaming", "in_memory")
"""Arms without Ray. Streaming comes first, since arrays end where memory does."""


def row(record: RunRecord, epochs: Sequence[EpochMetrics], memory_limit_bytes: int, folder: Path = Path()) -> ScaleRow:
    """Return what one arm did with one size. `folder` is its run's, which holds a user's task or model."""
    windows, warm = record.data.get("windows", {}).get("train"), record.warm_samples_per_second
    shards, test = record.data.get("shards"), record.metrics.get("test", {})
    line: ScaleRow = {
        "multiplier": record.config["data"]["multiplier"],
        "arm": record.arm,
        "place": "cluster" if cost.is_rented(record) else "machine",
        "hardware": _hardware(record),
        "settings": _settings(record, folder),
        "status": record.status,
        "reason": record.reason,
        "num_workers": record.num_workers,
        "simulated_nodes": record.machine.simulated_nodes,
        "cores": record.machine.cpus,
        "windows": windows,
        "samples": record.samples,
        "seconds": record.seconds.total,
        "setup_seconds": record.seconds.setup,
        "writing_seconds": shards["writing_seconds"] if shards else 0.0,
        "train_seconds": record.seconds.train,
        "samples_per_second": record.samples_per_second,
        "warm_samples_per_second": warm,
        "epoch_rates": _epoch_rates(epochs),
        "epoch_seconds": windows / warm if windows and warm else None,
        "memory_limit_bytes": memory_limit_bytes,
        "peak_memory_bytes": record.peak_memory_bytes,
        "peak_worker_bytes": record.peak_worker_bytes,
        "bytes_on_disk": shards["bytes"] if shards else None,
        "best_epoch": record.best_epoch,
        "metric": _metric(record),
        "test_error": _test_error(record),
        "suspicious": find_signs(record.config, record.data, test, record.metrics.get("naive", {}).values()),
        "run": record.name,
    }
    if record.machine.system.startswith(WATCHED):
        line["memory_watched"] = True
    return line


def _metric(record: RunRecord) -> str:
    """Return the metric by which the task is judged."""
    return str(record.metrics.get("test", {}).get("improvement", {}).get("metric", "mse"))


def _test_error(record: RunRecord) -> float | None:
    test, metric = record.metrics.get("test", {}), _metric(record)
    error = 1 - test["accuracy"] if metric == "error_rate" else test.get(metric)
    return None if error is None else float(error)


def fixed_seconds(seconds: float, writing: float, samples: int, rate: float) -> float:
    """Return the seconds of a run that do not grow with the windows.

    Without training at the warm rate, and without writing shards, which the next run does not pay. The wait for the
    first batch belongs to them.
    """
    return seconds - writing - samples / rate


def break_even(rows: Sequence[ScaleRow]) -> list[BreakEven]:
    """Return from how many windows trained Ray is sooner than one process, per place and number of workers.

    Both are assumed to be fixed seconds + windows / warm rate: the rate of the largest set, the median of what the rows
    leave over as fixed seconds, writing shards left out. One process is the baseline of the user's machine, and that of
    the cluster if none ran on the machine. `windows` is None if Ray is at no size sooner from there on. Rows
    of a busy machine do not count.
    """
    rows = [row for row in rows if not busy(row)]
    alone = baseline(rows)
    laws: list[BreakEven] = []
    for place, workers in sorted({(row["place"], row["num_workers"]) for row in rows if row["arm"] == "ray"}):
        ray = _law([row for row in rows if (row["place"], row["arm"], row["num_workers"]) == (place, "ray", workers)])
        if alone is None or ray is None:
            continue
        gained = 1 / alone["samples_per_second"] - 1 / ray["samples_per_second"]
        paid = ray["fixed_seconds"] - alone["fixed_seconds"]
        windows = max(paid / gained, 0.0) if gained > 0 else (0.0 if paid < 0 and gained == 0 else None)
        laws.append({"workers": workers, "place": place, "windows": windows, "alone": alone, "ray": ray})
    return laws


def baseline(rows: Sequence[ScaleRow]) -> Law | None:
    """Return fixed seconds and rate of one process: prefer the user's machine to the cluster, streaming to arrays."""
    candidates = (
        _law([row for row in rows if (row["place"], row["arm"]) == (place, arm)])
        for place in PLACES
        for arm in BASELINES
    )
    return next((law for law in candidates if law), None)


def strong(rows: Sequence[ScaleRow]) -> list[StrongScaling]:
    """Compare runs of the same set on more workers: speed-up over the fewest workers, and efficiency per worker."""
    scaled = _compute_speedups(rows, lambda row: float(row["multiplier"]))
    return [{**speedup, "multiplier": size} for size, speedup in scaled]


def weak(rows: Sequence[ScaleRow]) -> list[WeakScaling]:
    """Compare runs of a set that grows with the workers: samples/s relative to the fewest, and efficiency."""
    scaled = _compute_speedups(rows, lambda row: row["multiplier"] / row["num_workers"])
    return [{**speedup, "multiplier_per_worker": size} for size, speedup in scaled]


def _compute_speedups(rows: Sequence[ScaleRow], share: Callable[[ScaleRow], float]) -> list[tuple[float, Speedup]]:
    """Return size and speed of the runs of Ray in one place that share a size, if they differ in their workers."""
    groups: dict[tuple[str, float], dict[int, float]] = {}
    for row, rate in _warm(rows):
        if row["arm"] == "ray":
            groups.setdefault((row["place"], share(row)), {})[row["num_workers"]] = rate
    scaled: list[tuple[float, Speedup]] = []
    for (place, size), rates in sorted(groups.items()):
        fewest = min(rates)
        for workers, rate in sorted(rates.items()) if len(rates) > 1 else ():
            times = rate / rates[fewest]
            speedup = Speedup(
                place=place,
                workers=workers,
                samples_per_second=rate,
                speedup=times,
                efficiency=times * fewest / workers,
            )
            scaled.append((size, speedup))
    return scaled


def _law(rows: Sequence[ScaleRow]) -> Law | None:
    """Return fixed seconds and rate of the rows of one arm; None if it never ended well."""
    ended = _warm(rows)
    if not ended:
        return None
    largest, rate = max(ended, key=lambda pair: pair[0]["multiplier"])
    fixed = median(fixed_seconds(row["seconds"], row["writing_seconds"], row["samples"], own) for row, own in ended)
    misses = [abs((fixed + row["samples"] / rate) / (row["seconds"] - row["writing_seconds"]) - 1) for row, _ in ended]
    return Law(
        arm=largest["arm"],
        place=largest["place"],
        fixed_seconds=fixed,
        samples_per_second=rate,
        largest_miss=max(misses),
    )


def _warm(rows: Sequence[ScaleRow]) -> list[tuple[ScaleRow, float]]:
    """Return rows that ended well and have a warm rate, with it."""
    return [(row, rate) for row in rows if row["status"] == "ok" and (rate := row["warm_samples_per_second"])]


def _epoch_rates(epochs: Sequence[EpochMetrics]) -> list[float]:
    """Return the windows per second of each epoch, without the wait for its first batch."""
    timed = ((epoch.samples, epoch.train_seconds - epoch.first_batch_seconds) for epoch in epochs)
    return [samples / seconds for samples, seconds in timed if seconds > 0]


def _settings(record: RunRecord, folder: Path) -> str:
    data = {**record.config["data"], "multiplier": 1}
    return RunConfig.model_validate(source.make_absolute({**record.config, "data": data}, folder)).fingerprint


def _hardware(record: RunRecord) -> str:
    """Return a worker node of the cluster, or the machine: what decides how fast one worker is."""
    machine, cluster = record.machine, record.machine.cluster
    if not cost.is_rented(record):
        return f"{some(machine.cpus, 'core')}, {machine.memory_bytes / cost.GIB:.0f} GiB"
    if not cluster.get("worker_CPU"):
        return "a pod"
    parts = [some(cluster["worker_CPU"], "CPU"), f"{cluster.get('worker_memory', 0) / cost.GIB:.1f} GiB"]
    if gpus := cluster.get("worker_GPU"):
        parts.append(some(gpus, "GPU"))
    return f"nodes with {', '.join(parts)}"
