"""What the arms of a scale experiment need before any of them starts: rows, bytes, and about how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from sp500.config import RunConfig
from sp500.data.shards.stream import buffer_windows
from sp500.data.shards.writer import Source
from sp500.machine.memory import pss_bytes
from sp500.studies import scale_arms

# A node of Ray with one worker, measured on two cores (docs/LOG.md).
NODE_BYTES = 1_000_000_000


class ArmEstimate(TypedDict):
    """Expected memory of one arm at one size."""

    arm: str
    num_workers: int
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
    """Expected memory of a scale experiment."""

    memory_limit_bytes: int
    sizes: list[SizeEstimate]


def table(runs: Sequence[tuple[str, RunConfig]], memory_bytes: int) -> Estimate:
    """Return windows and bytes per size; and per run (arm, settings) expected memory and outcome. Trains nothing."""
    sizes: dict[int, SizeEstimate] = {}
    original = scale_arms.prepare(runs[0][1]).source()
    base = pss_bytes()
    for kind, config in runs:
        source = replace(original, multiplier=config.data.multiplier)
        size = sizes.setdefault(config.data.multiplier, _size(source, config))
        memory = _memory(kind, config, source, base)
        size["arms"].append(
            {
                "arm": kind,
                "num_workers": config.num_workers,
                "expected_peak_memory_bytes": memory,
                "expected_status": "out_of_memory" if kind == "in_memory" and memory > memory_bytes else "ok",
            }
        )
    return {"memory_limit_bytes": memory_bytes, "sizes": [*sizes.values()]}


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


def _memory(kind: str, config: RunConfig, source: Source, base: int) -> int:
    if kind == "in_memory":
        return base + int(_materialised_bytes(source, config) * config.model.copies)
    # A buffer, the shard that fills it, and the copies while it is put together.
    buffers = 4 * buffer_windows(source.layout) * source.layout.line_bytes
    return (NODE_BYTES if kind == "ray" else base) + buffers
