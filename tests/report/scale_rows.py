"""Rows of scale experiments as `scaling.row` makes them, with numbers that can be read off."""

from typing import Any

from sp500.report.scale.results import Row

GIB = 2**30


def one(multiplier: int, arm: str, rate: float | None, workers: int = 0, **changes: Any) -> Row:
    """A row of 1,000 windows per multiplier, one epoch, after `fixed` seconds (2); no rate: it did not end well."""
    fixed, windows = changes.pop("fixed", 2.0), 1000 * multiplier
    row: dict[str, Any] = {
        "multiplier": multiplier,
        "arm": arm,
        "place": "machine",
        "hardware": "2 cores, 8 GiB",
        "settings": "s",
        "cores": 2,
        "epoch_rates": [rate] * 3 if rate else [],
        "metric": "mse",
        "test_error": 2e-4 if rate else None,
        "best_epoch": 1 if rate else None,
        "status": "ok" if rate else "out_of_memory",
        "reason": "" if rate else "no room",
        "num_workers": workers,
        "simulated_nodes": 0,
        "windows": windows if rate else None,
        "samples": windows if rate else 0,
        "seconds": fixed + (windows / rate if rate else 0.0),
        "setup_seconds": fixed,
        "writing_seconds": 0.0,
        "train_seconds": windows / rate if rate else 0.0,
        "samples_per_second": 0.5 * rate if rate else None,
        "warm_samples_per_second": rate,
        "epoch_seconds": windows / rate if rate else None,
        "memory_limit_bytes": 2 * GIB,
        "peak_memory_bytes": GIB if rate else None,
        "peak_worker_bytes": GIB if rate else None,
        "bytes_on_disk": None if arm == "in_memory" else 2**20 * multiplier,
        "run": f"{multiplier}-{arm}-{workers}",
    }
    return row | changes
