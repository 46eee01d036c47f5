"""Metrics that a training run reports to Prometheus after each epoch, through Ray's metrics.

Ray adds its prefix and serves them on every node's metrics port: `ray_sp500_train_loss{run="..."}`. For dashboards
only: the report reads the record and the epoch lines in the run's folder.
"""

from __future__ import annotations

from ray.util.metrics import Gauge

from sp500.runs.record import EpochMetrics

NAMES = {
    "sp500_epoch": "Epochs done",
    "sp500_train_loss": "Mean training loss of the last epoch",
    "sp500_valid_loss": "Validation loss after the last epoch",
    "sp500_windows_per_second": "Windows trained on per second of the last epoch, over all workers",
}


def values(epoch: EpochMetrics) -> dict[str, float]:
    """Return an epoch's values by the names of NAMES, without values that are None."""
    metrics = {
        "sp500_epoch": float(epoch.epoch),
        "sp500_train_loss": epoch.train_loss,
        "sp500_valid_loss": epoch.valid_loss,
        "sp500_windows_per_second": epoch.samples / epoch.train_seconds if epoch.train_seconds else None,
    }
    return {name: value for name, value in metrics.items() if value is not None}


class EpochGauges:
    """The gauges of one run, made in the process that reports it."""

    def __init__(self, run: str) -> None:
        self._gauges = {name: Gauge(name, text, tag_keys=("run",)) for name, text in NAMES.items()}
        for gauge in self._gauges.values():
            gauge.set_default_tags({"run": run})

    def set(self, epoch: EpochMetrics) -> None:
        """Show this epoch until the next one."""
        for name, value in values(epoch).items():
            self._gauges[name].set(value)
