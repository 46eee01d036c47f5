"""One training run from its settings to its record, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime

import numpy as np

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, SP500Error
from sp500.runs.record import EpochMetrics, RunRecord, ended, process_started
from sp500.runs.store import Run, write_atomic
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult, fit
from sp500.training.task import Task
from sp500.training.worker import SoloWorker, device
from sp500.tuning import sequential
from sp500.tuning.ledger import Ledger, TrialResult
from sp500.tuning.space import Trial
from sp500.tuning.space import key as space_key


def train(
    config: RunConfig,
    run: Run,
    *,
    experiment: str = "train",
    arm: str | None = None,
    started: datetime | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
) -> RunRecord:
    """Train, judge and describe one run; checkpoints, epochs and predictions go to its folder.

    `started` is when the run's clock began (default: this process). Raises SP500Error.
    """
    config = catalog.resolve(config)
    started = started or process_started()
    task = catalog.task(config)
    dataset = task.prepare(config)
    result, cluster = _fit(task, dataset, config, run, on_epoch)
    fitted = (datetime.now(UTC) - started).total_seconds()
    run.write_epochs(result.epochs)
    return ended(
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
        peak_memory_bytes=result.peak_worker_bytes,
        device=result.device,
        data=dataset.card,
        metrics=judged(task, dataset, result, config, run),
        best_epoch=result.best_epoch,
    )


def search(
    config: RunConfig,
    run: Run,
    trials: Sequence[Trial],
    *,
    space: str,
    parallel: bool,
    on_result: Callable[[TrialResult], None] | None = None,
) -> RunRecord:
    """Try every trial, then train the best by validation loss once more, as this run, and only then look at the test.

    Trials that the run's ledger holds are not run again. Raises SP500Error when all trials failed.
    """
    if not config.data.valid_from_train:
        raise ConfigError("data.valid_from_train is 0: a search needs a validation split to choose by")
    ledger = Ledger(run.path)
    left = [trial for trial in trials if trial.id not in ledger.results]
    cores = _try_all(config, run, left, ledger, parallel=parallel, on_result=on_result)
    best = ledger.best()
    if best is None:
        reasons = [f"  {one.overrides}: {one.reason}" for one in ledger.results.values()]
        raise SP500Error("\n".join([f"all {len(trials)} trials failed:", *reasons[:5]]))
    chosen = next(trial for trial in trials if trial.id == best.id)
    record = train(chosen.config, run, experiment="tune", arm="parallel" if parallel else "sequential")
    summary = {
        "space": space,
        "key": space_key(trials),
        "configs": len(trials),
        "failed": sum(one.status != "ok" for one in ledger.results.values()),
        "resumed": len(trials) - len(left),
        "cores": cores,
        "best": {"id": best.id, "overrides": best.overrides, "valid_loss": best.valid_loss},
    }
    samples = record.samples + sum(one.samples for one in ledger.results.values())
    return record.model_copy(update={"search": summary, "samples": samples})


def _try_all(
    config: RunConfig,
    run: Run,
    trials: Sequence[Trial],
    ledger: Ledger,
    *,
    parallel: bool,
    on_result: Callable[[TrialResult], None] | None,
) -> int:
    """Fill the ledger; gives the number of cores that could be used."""

    def keep(result: TrialResult) -> None:
        ledger.add(result)
        if on_result:
            on_result(result)

    task = catalog.task(config)
    dataset = task.prepare(config) if trials else None
    if not parallel:
        for result in sequential.run(task, dataset, trials) if dataset else ():
            keep(result)
        return 1
    from sp500.distributed import cluster
    from sp500.distributed import search as tune

    with cluster.connected():
        if dataset:
            tune.run(task, dataset, trials, storage=run.path / ".ray", on_result=keep)
        return tune.cores()


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
        return fit(task, dataset, config, worker, Checkpoints(run.checkpoints, config.fingerprint)), None
    from sp500.distributed import cluster, trainer

    with cluster.connected():
        follow = run.following(on_epoch) if on_epoch else nullcontext()
        with follow:
            return trainer.fit_on_ray(task, dataset, config, run), cluster.resources()
