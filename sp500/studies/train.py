"""One training run from its settings to its record, in this process or on Ray."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import DiskError
from sp500.formatting import size
from sp500.machine.disk import write_atomic
from sp500.machine.memory import PeakMemory
from sp500.models import catalog as models
from sp500.runs.record import EpochMetrics, RunRecord, clock_start, make_record
from sp500.runs.results import Metrics, SeedRow
from sp500.runs.store import Run
from sp500.tasks import catalog
from sp500.tasks.cuts import try_cuts
from sp500.training import checkpoint, estimator, recipe, refit
from sp500.training.fitting import fit_model
from sp500.training.loop import FitResult
from sp500.training.task import Detailed, Generative, Publishing, Task
from sp500.training.throughput import ModelCost, add_matmul, count_cost, count_versions, describe
from sp500.training.worker import SoloWorker, device

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay

MUCH_DISK = 64 * 2**20


def train(
    config: RunConfig,
    run: Run,
    *,
    experiment: str = "train",
    arm: str | None = None,
    dataset: Dataset | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
    seeds: int = 1,
    ray: BackgroundRay | None = None,
) -> RunRecord:
    """Train, judge and describe one run; checkpoints, epochs and predictions go to its folder.

    `dataset`: if it is loaded; `ray`: if it is starting. With several `seeds` the model is trained and judged for as
    many, of which the first is its own. Raises SP500Error.
    """
    config, started = catalog.resolve(config), clock_start()
    task = catalog.task(config)
    with PeakMemory() as peak:
        dataset = dataset or catalog.prepare(task, config)
        estimator.check(config, dataset)
        cost = count_cost(task, config, dataset)
        warn_disk_use(cost, config, dataset, run)
        with _trainer(task, config, run, on_epoch, ray, measure_speed=cost is not None) as (fit_one, resources, gpu):
            noted = try_cuts(task, dataset, config, cost, gpu=gpu)
            result, refitted, fitted = refit.fit_with(fit_one, task, config, dataset, folder=run.path)
            others = _train_seeds(fit_one, task, config, dataset, folder=run.path, seeds=seeds)
            cluster = resources()
    record = run_record(config, run, noted, result, experiment=experiment, arm=arm, started=started, cluster=cluster)
    model = recipe.write(run.path, task, config, fitted)
    # Alone, this process prepared the data too; on Ray the driver does, and the record counts the workers.
    largest = result.peak_worker_bytes if config.num_workers else peak.bytes
    metrics = judge(task, dataset, result, config, run)
    _add_sample(task, model, dataset, metrics, run)
    own: SeedRow = {"seed": config.train.seed, "best_epoch": result.best_epoch, "test": metrics["test"]}
    facts: dict[str, object] = {"metrics": metrics, "peak_memory_bytes": largest, "refit": refitted}
    facts |= {"throughput": describe(cost, result, config), "seeds": [own, *others] if others else None}
    if isinstance(task, Detailed):
        facts["breakdown"] = task.break_down(result.outputs["test"], dataset, metrics["test"])
    return record.model_copy(update=facts)


def _add_sample(task: Task, model: nn.Module, dataset: Dataset, metrics: Metrics, run: Run) -> None:
    """Write a sample of the model's text into the metrics, and the model in its ecosystem's format into its folder."""
    if isinstance(task, Generative):
        metrics["test"]["sample"] = task.sample(model, dataset)
    if isinstance(task, Publishing):
        task.publish(model, dataset, run.path / "model")


def warn_disk_use(cost: ModelCost | None, config: RunConfig, dataset: Dataset, run: Run) -> None:
    """Warn on stderr of large checkpoints, with their bytes. Raises DiskError if not even one fits."""
    if cost is None:
        return
    windows = dataset.card.get("windows", {}).get("train", len(dataset.train))
    most = count_versions(config.train, -(-windows // config.batch_size)) * cost.checkpoint_bytes
    free = shutil.disk_usage(run.path).free
    if cost.checkpoint_bytes > free:
        raise DiskError(
            f"a checkpoint needs {size(cost.checkpoint_bytes)} and {run.path} has {size(free)} free: make room there"
        )
    if most >= MUCH_DISK:
        short = " (train.keep decides how many stay)" if most > free else ""
        print(
            f"checkpoints: {size(cost.checkpoint_bytes)} each, {size(most)} at most, {size(free)} free{short}",
            file=sys.stderr,
        )


def _train_seeds(
    fit_one: refit.Fit, task: Task, config: RunConfig, dataset: Dataset, *, folder: Path, seeds: int
) -> list[SeedRow]:
    """Return the metrics of the model with the weights and dropout of each seed after the run's own."""
    rows: list[SeedRow] = []
    for seed in range(config.train.seed + 1, config.train.seed + seeds):
        other = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
        result, *_ = refit.fit_with(fit_one, task, other, dataset, folder=folder / f"seed-{seed}")
        test = task.judge(result.outputs, dataset)["test"]
        rows.append({"seed": seed, "best_epoch": result.best_epoch, "test": test})
    return rows


def run_record(
    config: RunConfig,
    run: Run,
    dataset: Dataset,
    result: FitResult,
    *,
    experiment: str,
    arm: str | None,
    started: datetime,
    cluster: dict[str, float] | None = None,
) -> RunRecord:
    """Return the record, without metrics, of a fit that has just ended; its epochs go to the run's folder.

    `arm`: default solo, or ray with workers.
    """
    fitted, warm = (datetime.now(UTC) - started).total_seconds(), result.warm_seconds
    run.write_epochs(result.epochs)
    return make_record(
        config,
        name=run.name,
        experiment=experiment,
        arm=arm or ("ray" if config.num_workers else "solo"),
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
        best_loss=result.best_loss,
        untrained_loss=result.untrained_loss,
        best_epoch=result.best_epoch,
        stages=len(result.epochs) if models.is_estimator(config.model, dataset) else None,
    )


def judge(task: Task, dataset: Dataset, result: FitResult, config: RunConfig, run: Run) -> Metrics:
    """Return the metrics of the best epoch; predictions of the test and confusion matrix go to the run's folder."""
    metrics = task.judge(result.outputs, dataset)
    for split, measures in result.measures.items():
        metrics[split] = {**measures, **metrics[split]}
    task.predictions(result.outputs["test"], dataset.test, dataset).to_parquet(run.path / "predictions.parquet")
    matrix = metrics["test"].get("confusion_matrix")
    if matrix is not None and config.eval.save_cm:
        # Rows are the truth, columns the forecasts.
        lines = [",".join(map(str, row)) for row in np.asarray(matrix)]
        write_atomic(run.path / "confusion_matrix.csv", "\n".join(lines) + "\n")
    return metrics


@contextmanager
def _trainer(
    task: Task,
    config: RunConfig,
    run: Run,
    on_epoch: Callable[[EpochMetrics], None] | None,
    ray: BackgroundRay | None,
    *,
    measure_speed: bool,
) -> Iterator[tuple[refit.Fit, Callable[[], dict[str, float] | None], bool]]:
    """Yield functions that train a model and read the cluster's resources, and whether GPUs train, while connected."""
    # The first fit is the run's own; those for other seeds or on more dates leave no epochs.
    first = itertools.chain([True], itertools.repeat(False))
    if not config.num_workers:

        def keep(epoch: EpochMetrics) -> None:
            run.append_epoch(epoch)
            if on_epoch:
                on_epoch(epoch)

        def alone(config: RunConfig, dataset: Dataset, folder: Path) -> FitResult:
            own = next(first)
            worker = SoloWorker(device(config.train.device), keep if own else None)
            result = fit_model(task, dataset, config, worker, checkpoint.of_run(folder, config, dataset))
            return add_matmul(result, config, worker) if own and measure_speed else result

        yield alone, lambda: None, device(config.train.device).type == "cuda"
        return
    from sp500.distributed import capacity, preflight, session, train

    def on_ray(config: RunConfig, dataset: Dataset, folder: Path) -> FitResult:
        own = next(first)
        return train.fit_on_ray(task, dataset, config, run, checkpoints=folder, report=own, measure_speed=own)

    with ray.connect() if ray else session.connect():
        gpu = preflight.use_gpu(config.train.device, config.num_workers)
        preflight.worker_share(config.num_workers, gpu=gpu)
        # After the nodes have come, so that the storage is tried on all of them.
        preflight.check_shared_storage(run.path)
        with run.following(on_epoch) if on_epoch else nullcontext():
            yield on_ray, capacity.resources, gpu
