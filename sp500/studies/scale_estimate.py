"""An estimate of an arm before it starts: rows, bytes, and about how many seconds and how much memory.

The training speed is measured here and now, in a few steps; what is paid once is a constant from earlier runs on two
cores. An estimate, good to about a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from sp500.config import RunConfig
from sp500.data.shards.stream import buffer_windows
from sp500.data.shards.writer import Source
from sp500.machine import ray_address
from sp500.machine.cores import usable_cores
from sp500.machine.memory import pss_bytes
from sp500.studies import scale_arms
from sp500.tasks import catalog
from sp500.training.fitting import fit_model
from sp500.training.worker import SoloWorker, device

STEPS = 40
# Measured on two cores (docs/LOG.md): starting one process, starting Ray with workers and readers, a node of Ray with
# one worker, and windows written to shards or copied out per second.
ALONE_SECONDS = 5.0
RAY_SECONDS = 15.0
NODE_BYTES = 1_000_000_000
WRITTEN_PER_SECOND = 5_000_000
COPIED_PER_SECOND = 2_000_000
# Of the speed alone, what a worker of Ray keeps.
RAY_SHARE = 0.85


class ArmEstimate(TypedDict):
    """Expected time and memory of one arm at one size."""

    arm: str
    num_workers: int
    expected_seconds: float
    expected_peak_memory_bytes: int
    expected_status: str


class SizeEstimate(TypedDict):
    """A size of the dataset, and its arms."""

    multiplier: int
    rows: int
    windows: int
    bytes_on_disk: int
    bytes_materialised: int
    arms: list[ArmEstimate]


class Estimate(TypedDict):
    """Expected time and memory of a scale experiment."""

    memory_limit_bytes: int
    samples_per_second_alone: int
    """Windows per second of one process."""
    sizes: list[SizeEstimate]


def table(runs: Sequence[tuple[str, RunConfig]], memory_bytes: int) -> Estimate:
    """Return windows and bytes per size; and per run (arm, settings) expected seconds, memory and outcome."""
    sizes: dict[int, SizeEstimate] = {}
    speed, base, original = _measure(runs[0][1])
    for kind, config in runs:
        source = replace(original, multiplier=config.data.multiplier)
        size = sizes.setdefault(config.data.multiplier, _size(source, config))
        memory = _memory(kind, config, source, base)
        size["arms"].append(
            {
                "arm": kind,
                "num_workers": config.num_workers,
                "expected_seconds": round(_seconds(kind, config, source, speed), 1),
                "expected_peak_memory_bytes": memory,
                "expected_status": "out_of_memory" if kind == "in_memory" and memory > memory_bytes else "ok",
            }
        )
    return {"memory_limit_bytes": memory_bytes, "samples_per_second_alone": round(speed), "sizes": [*sizes.values()]}


def _measure(config: RunConfig) -> tuple[float, int, Source]:
    """Return windows per second of the loop in this process, its memory with only the original data, and that data."""
    short = {} if config.model.estimator else {"epochs": 1, "max_steps": STEPS}
    few = config.model_copy(update={"num_workers": 0, "train": config.train.model_copy(update=short)})
    ready = scale_arms.prepare(few)
    dataset = ready.dataset(few.train.dtype, multiplier=1)
    result = fit_model(catalog.task(few), dataset, few, SoloWorker(device(few.train.device)))
    if config.model.estimator:
        return len(dataset.train) / result.fit_seconds, pss_bytes(), ready.source()
    return result.samples / (result.train_seconds - result.first_batch_seconds), pss_bytes(), ready.source()


def _size(source: Source, config: RunConfig) -> SizeEstimate:
    layout = source.layout
    return {
        "multiplier": config.data.multiplier,
        "rows": source.rows,
        "windows": source.windows,
        "bytes_on_disk": (source.windows if layout.whole else source.rows) * layout.line_bytes,
        "bytes_materialised": _materialised_bytes(source, config),
        "arms": [],
    }


def _materialised_bytes(source: Source, config: RunConfig) -> int:
    layout = source.layout
    wider = 2 if not layout.whole and config.train.dtype == "float64" else 1  # shards of prices are float32
    return source.windows * layout.window * layout.row_bytes * wider


def _samples(source: Source, config: RunConfig) -> int:
    if config.model.estimator:
        return source.windows
    steps = -(-source.windows // config.batch_size) * config.train.epochs
    limited = min(steps, config.train.max_steps or steps)
    return min(limited * config.batch_size, source.windows * config.train.epochs)


def _seconds(kind: str, config: RunConfig, source: Source, speed: float) -> float:
    samples = _samples(source, config)
    if kind == "in_memory":
        return ALONE_SECONDS + source.windows / COPIED_PER_SECOND + samples / speed
    written = source.windows / WRITTEN_PER_SECOND
    if kind == "streaming":
        return ALONE_SECONDS + written + samples / speed
    cores = config.num_workers if ray_address.read() else min(config.num_workers, usable_cores())
    return RAY_SECONDS + written + samples / (speed * cores * RAY_SHARE)


def _memory(kind: str, config: RunConfig, source: Source, base: int) -> int:
    if kind == "in_memory":
        return base + int(_materialised_bytes(source, config) * config.model.copies)
    # A buffer, the shard that fills it, and the copies while it is put together.
    buffers = 4 * buffer_windows(source.layout) * source.layout.line_bytes
    return (NODE_BYTES if kind == "ray" else base) + buffers
