"""Ray Tune: the trials of a search side by side.

Actors are reused and the data is put into the object store once: without that, 18 trials of a second each took three
times as long as a for-loop (55 to 62 s against 20 s on two cores). A trial takes one CPU and one thread.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from sp500.data.windows import Dataset
from sp500.distributed import cluster
from sp500.errors import SP500Error
from sp500.training.task import Task
from sp500.tuning.ledger import TrialResult
from sp500.tuning.sequential import run_trial
from sp500.tuning.space import Trial

RESULT = "result"


def run(
    task: Task,
    dataset: Dataset,
    trials: Sequence[Trial],
    *,
    storage: Path,
    on_result: Callable[[TrialResult], None],
) -> None:
    """Train every trial on the connected cluster; `on_result` gets each result here in the driver as it arrives."""
    folder = storage.resolve()
    # Tune resumes an old experiment of the same name; the ledger is what counts here.
    shutil.rmtree(folder, ignore_errors=True)
    trainable = tune.with_parameters(_Trainable, task=task, dataset=dataset, trials=list(trials))
    gpu = cluster.use_gpu(trials[0].config.train.device, 1)
    arrived: set[str] = set()

    def keep(result: TrialResult) -> None:
        arrived.add(result.id)
        on_result(result)

    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1, "gpu": 1 if gpu else 0}),
        param_space={"number": tune.grid_search(list(range(len(trials))))},
        tune_config=tune.TuneConfig(metric="valid_loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), verbose=0, callbacks=[_Arrivals(keep)]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune's own deprecations are not the user's business
        found = cluster.beside(tuner.fit)
    for error in found.errors:
        raise SP500Error(f"Ray Tune lost a trial: {error}")
    missing = {trial.id for trial in trials} - arrived
    if missing:
        raise SP500Error(f"Ray Tune ended without {len(missing)} of {len(trials)} trials; --resume runs them")
    shutil.rmtree(folder, ignore_errors=True)


class _Trainable(tune.Trainable):  # type: ignore[misc] # Ray has no types
    """One actor: a trial is one step."""

    def setup(self, config: dict[str, Any], task: Task, dataset: Dataset, trials: list[Trial]) -> None:
        self._task, self._dataset, self._trials = task, dataset, trials

    def step(self) -> dict[str, Any]:
        result = run_trial(self._task, self._dataset, self._trials[self.config["number"]])
        # A failed trial has no loss; infinity keeps Tune's own book-keeping in order.
        loss = result.valid_loss if result.valid_loss is not None else float("inf")
        return {"valid_loss": loss, RESULT: result.model_dump_json(), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: Tune saves before it reuses an actor, and a trial of one step has nothing to go on from."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True


class _Arrivals(tune.Callback):  # type: ignore[misc]
    """Hands each trial's result to the driver."""

    def __init__(self, on_result: Callable[[TrialResult], None]) -> None:
        self._on_result = on_result

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes its callbacks to disk for a restore, which the ledger makes unnecessary."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self._on_result(TrialResult.model_validate_json(result[RESULT]))


def cores() -> int:
    """CPUs that trials run on."""
    return int(ray.cluster_resources().get("CPU", 0))
