"""A search from its settings to its record: try every config, choose by validation, look at the test once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.distributed import launch
from sp500.errors import ConfigError, SP500Error
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.tasks import catalog
from sp500.training.task import Task
from sp500.tuning import sequential
from sp500.tuning.ledger import Ledger, TrialResult
from sp500.tuning.space import Trial, key


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
    task = catalog.task(config)
    dataset = task.prepare(config)
    ledger = Ledger(run.path, dataset.sha256)
    left = [trial for trial in trials if trial.id not in ledger.results]

    def keep(result: TrialResult) -> None:
        ledger.add(result)
        if on_result:
            on_result(result)

    started = time.monotonic()
    cores = _try_all(task, dataset, left, run, keep, parallel=parallel)
    searched = time.monotonic() - started
    chosen = _best(trials, ledger)
    record = launch.train(chosen.config, run, experiment="tune", arm="parallel" if parallel else "sequential")
    summary = {
        "space": space,
        "resumed": len(trials) - len(left),
        "cores": cores,
        **_summary(trials, ledger),
        "key": key(trials, dataset.sha256),
    }
    samples = record.samples + sum(one.samples for one in ledger.results.values())
    seconds = record.seconds.model_copy(update={"setup": record.seconds.setup - searched, "search": searched})
    return record.model_copy(update={"search": summary, "samples": samples, "seconds": seconds})


def _best(trials: Sequence[Trial], ledger: Ledger) -> Trial:
    best = ledger.best()
    if best is None:
        reasons = [f"  {one.overrides}: {one.reason}" for one in ledger.results.values()]
        raise SP500Error("\n".join([f"all {len(trials)} trials failed:", *reasons[:5]]))
    return next(trial for trial in trials if trial.id == best.id)


def _summary(trials: Sequence[Trial], ledger: Ledger) -> dict[str, Any]:
    best = ledger.best()
    assert best is not None
    return {
        "configs": len(trials),
        "failed": sum(one.status != "ok" for one in ledger.results.values()),
        "best": {"id": best.id, "overrides": best.overrides, "valid_loss": best.valid_loss},
    }


def _try_all(
    task: Task,
    dataset: Dataset,
    trials: Sequence[Trial],
    run: Run,
    keep: Callable[[TrialResult], None],
    *,
    parallel: bool,
) -> int:
    """Hand each trial's result to `keep`; gives the number of cores that could be used."""
    if not parallel:
        for result in sequential.run(task, dataset, trials):
            keep(result)
        return 1
    from sp500.distributed import cluster
    from sp500.distributed import search as tune

    with cluster.connected():
        if trials:
            tune.run(task, dataset, trials, storage=run.path / ".ray", on_result=keep)
        return tune.cores()
