"""One training run from its settings to its record, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

import numpy as np

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.disk import write_atomic
from sp500.memory import PeakMemory
from sp500.runs.record import EpochMetrics, RunRecord, ended, process_started
from sp500.runs.store import Run
from sp500.tasks import catalog
from sp500.training import checkpoint
from sp500.training.loop import FitResult, fit
from sp500.training.task import Task
from sp500.training.worker import SoloWorker, device


def train(
    config: RunConfig,
    run: Run,
    *,
    experiment: str = "train",
    arm: str | None = None,
    started: datetime | None = None,
    dataset: Dataset | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
) -> RunRecord:
    """Train, judge and describe one run; checkpoints, epochs and predictions go to its folder.

    `started` is when the run's clock began (default: this process); `dataset`: the run's, where it is at hand. Raises
    SP500Error.
    """
    config = catalog.resolve(config)
    started = started or process_started()
    task = catalog.task(config)
    with PeakMemory() as peak:
        dataset = dataset or task.prepare(config)
        result, cluster = _fit(task, dataset, config, run, on_epoch)
    arm = arm or ("ray" if config.num_workers else "solo")
    record = described(config, run, dataset, result, experiment=experiment, arm=arm, started=started, cluster=cluster)
    # Alone, this process prepared the data too; on Ray the driver does, and the record tells of the workers.
    largest = result.peak_worker_bytes if config.num_workers else peak.bytes
    metrics = judged(task, dataset, result, config, run)
    return record.model_copy(update={"metrics": metrics, "peak_memory_bytes": largest})


def described(
    config: RunConfig,
    run: Run,
    dataset: Dataset,
    result: FitResult,
    *,
    experiment: str,
    arm: str,
    started: datetime,
    cluster: dict[str, float] | None = None,
) -> RunRecord:
    """Record, without metrics, of a fit that has just ended; its epochs go to the run's folder."""
    fitted = (datetime.now(UTC) - started).total_seconds()
    warm = result.train_seconds - result.first_batch_seconds
    run.write_epochs(result.epochs)
    return ended(
        config,
        name=run.name,
        experiment=experiment,
        arm=arm,
        started=started,
        setup_seconds=max(fitted - result.fit_seconds, 0.0),
        train_seconds=result.fit_seconds,
        cluster=cluster,
        samples=result.samples,
        samples_per_second=result.samples / result.train_seconds if result.train_seconds else None,
        warm_samples_per_second=result.samples / warm if warm > 0 else None,
        peak_memory_bytes=result.peak_worker_bytes,
        peak_worker_bytes=result.peak_worker_bytes,
        device=result.device,
        data=dataset.card,
        best_epoch=result.best_epoch,
    )


def judged(task: Task, dataset: Dataset, result: FitResult, config: RunConfig, run: Run) -> dict[str, object]:
    """Metrics of the best epoch; predictions of the test split and the confusion matrix go to the run's folder."""
    metrics = task.judge(result.outputs, dataset)
    task.predictions(result.outputs["test"], dataset.test, dataset).to_parquet(run.path / "predictions.parquet")
    matrix = metrics["test"].get("confusion_matrix")
    if matrix is not None and config.eval.save_cm:
        # Rows are the truth, columns what was said.
        lines = [",".join(map(str, row)) for row in np.asarray(matrix)]
        write_atomic(run.path / "confusion_matrix.csv", "\n".join(lines) + "\n")
    return metrics


def _fit(
    task: Task, dataset: Dataset, config: RunConfig, run: Run, on_epoch: Callable[[EpochMetrics], None] | None
) -> tuple[FitResult, dict[str, float] | None]:
    if not config.num_workers:

        def keep(epoch: EpochMetrics) -> None:
            run.append_epoch(epoch)
            if on_epoch:
                on_epoch(epoch)

        worker = SoloWorker(device(config.train.device), keep)
        return fit(task, dataset, config, worker, checkpoint.of_run(run.checkpoints, config, dataset)), None
    from sp500.distributed import cluster, preflight, trainer

    with cluster.connected():
        preflight.shared(run.path)
        follow = run.following(on_epoch) if on_epoch else nullcontext()
        with follow:
            return trainer.fit_on_ray(task, dataset, config, run), preflight.resources()
