"""One worker of Ray Train."""

from __future__ import annotations

import ray.train
import torch

from sp500.distributed.prometheus import EpochGauges
from sp500.runs.record import EpochMetrics
from sp500.runs.store import Run
from sp500.training.worker import GroupWorker


class RayWorker(GroupWorker):
    """This worker of Ray Train. Rank 0 writes the epochs to the run's folder and shows the last one to Prometheus.

    Without a run, as for its further seeds, epochs leave no trace.
    """

    def __init__(self, device: torch.device, run: Run | None) -> None:
        context = ray.train.get_context()
        gauges = EpochGauges(run.name) if run else None

        def keep(epoch: EpochMetrics) -> None:
            if run and gauges:
                run.append_epoch(epoch)
                gauges.set(epoch)

        super().__init__(context.get_world_rank(), context.get_world_size(), device, keep)
