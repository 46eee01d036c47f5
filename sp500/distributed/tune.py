"""Ray Tune: packs of trials side by side.

A Tune trial runs a pack of configs (see `sp500.tuning.packing.packs`). Actors are reused and the data is put into the
object store once: without that, 18 trials of a second each took three times as long as a for-loop (55 to 62 s against
20 s on two cores). A pack takes one CPU and one thread. Suggestions, results and what happens after a kill are the
search's task, not Tune's.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from sp500.distributed import capacity, preflight, session
from sp500.errors import SP500Error
from sp500.machine.memory import limit_memory
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult
from sp500.training.loop import FitResult
from sp500.tuning import trial_data
from sp500.tuning.limits import Limits
from sp500.tuning.packing import packs
from sp500.tuning.packing.packs import PackQueue
from sp500.tuning.sequential import build_failure, run_trial
from sp500.tuning.space import Trial
from sp500.tuning.suggest import Suggester
from sp500.tuning.trial_data import TrialData

_PackConfig = dict[str, list[Trial]]
"""The config of a Tune trial: a pack under the key `pack`."""


class _StepResult(TypedDict):
    """What a step reports to Tune."""

    loss: float
    results: list[str]
    """A TrialResult each, as JSON."""
    done: bool


def run(
    datasets: Mapping[str, TrialData | str],
    suggester: Suggester,
    limits: Limits,
    *,
    at_once: int,
    storage: Path,
    on_result: Callable[[TrialResult, int], None],
) -> None:
    """Try what the suggester says, asked for `at_once` trials at a time, on the connected cluster.

    `on_result` gets each result, and how many configs are on their way. Raises SP500Error for trials without a result.
    """
    folder = storage.resolve()
    # Tune resumes an old experiment of the same name; the ledger is what counts here.
    shutil.rmtree(folder, ignore_errors=True)
    share, slots = _share(limits)
    stopper = _Stopper()
    queue = PackQueue(suggester, "off" if limits.workers else limits.pack, at_once, limits.spread(slots))
    trainable = tune.with_parameters(_Trainable, datasets=dict(datasets), limits=limits, folder=folder)
    tuner = tune.Tuner(
        tune.with_resources(trainable, share),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=_PackSearcher(queue),
            num_samples=-1,
            # Also how many actors may be on their way at once: Tune's default for a searcher is one.
            max_concurrent_trials=slots,
            reuse_actors=True,
        ),
        run_config=_run_config(folder, _Arrivals(on_result, queue), stopper),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune's own deprecations, which a user cannot change
        grid = session.run_in_thread(tuner.fit, stopper.stop)
    if queue.waiting:
        errors = "; ".join(str(error) for error in grid.errors)[:500]
        raise SP500Error(f"Ray Tune ended without {len(queue.waiting)} trials; --resume runs them. {errors}")
    shutil.rmtree(folder, ignore_errors=True)


def _run_config(folder: Path, arrivals: _Arrivals, stopper: _Stopper) -> tune.RunConfig:
    return tune.RunConfig(name="tune", storage_path=str(folder), verbose=0, callbacks=[arrivals], stop=stopper)


def _share(limits: Limits) -> tuple[dict[str, float], int]:
    """What a pack takes of the cluster, and how many packs run at once.

    A trial of N workers takes no CPU from them itself, or all could wait for each other for ever; but Tune wants it to
    take something. Raises ResourcesError for GPUs that are not there.
    """
    have = preflight.most()
    gpu, gpus = preflight.use_gpu(limits.device, 1), int(have["GPU"])
    preflight.worker_share(max(limits.workers, 1), gpu=gpu)
    slots = max((gpus if gpu else int(have["CPU"])) // max(limits.workers, 1), 1)
    return ({"memory": 1} if limits.workers else {"cpu": 1, "gpu": int(gpu)}), slots


class _Stopper(tune.Stopper):  # type: ignore[misc]
    """Ends the search once `stop` was called."""

    def __init__(self) -> None:
        self._asked = False

    def stop(self) -> None:
        self._asked = True

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return self._asked

    def stop_all(self) -> bool:
        return self._asked


class _PackSearcher(Searcher):  # type: ignore[misc] # Ray has no types
    """Hands the queue's packs to Tune, one per call."""

    def __init__(self, queue: PackQueue) -> None:
        super().__init__(metric="loss", mode="min")
        self._queue = queue

    def suggest(self, trial_id: str) -> _PackConfig | str | None:
        """The next pack; None while one may come back, FINISHED when all are done."""
        del trial_id
        if pack := self._queue.take():
            return {"pack": pack}
        return None if self._queue.waiting else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Nothing: the suggester gets each result as it arrives."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger is what a search goes on from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, for the same reason."""


class _Trainable(tune.Trainable):  # type: ignore[misc]
    """One actor. A step of Tune is what a pack does until some of its configs are done."""

    def setup(self, config: _PackConfig, datasets: dict[str, TrialData | str], limits: Limits, folder: Path) -> None:
        self._datasets, self._limits, self._folder = datasets, limits, folder
        if limits.memory:
            limit_memory(limits.memory)
        if not limits.workers:  # else the trial's own workers do
            capacity.withdraw()
        self._begin(config["pack"])

    def _begin(self, pack: list[Trial]) -> None:
        data = self._datasets[trial_data.key(pack[0].config)]
        self._left, self._loss = len(pack), math.inf
        limits = self._limits
        if limits.workers:
            # Trained in `step`: what begins an actor should not wait for a whole training.
            self._coming: Iterator[list[TrialResult]] = (
                [run_trial(data, trial, limits.timeout, self._fit_on_ray)] for trial in pack
            )
        else:
            self._coming = packs.run_with_watchdog(data, pack, limits)

    def step(self) -> _StepResult:
        """Results of the next configs that are done."""
        results = next(self._coming)
        self._left -= len(results)
        # A failed trial has no loss; infinity keeps Tune's own book-keeping in order.
        self._loss = min(self._loss, *(result.score if result.score is not None else math.inf for result in results))
        lines = [result.model_dump_json() for result in results]
        return {"loss": self._loss, "results": lines, "done": not self._left}

    def _fit_on_ray(self, data: TrialData, trial: Trial) -> FitResult:
        """A trial that is itself a run of Ray Train."""
        from sp500.distributed import train

        config = trial.config.model_copy(update={"num_workers": self._limits.workers})
        # In the search's own folder, which every node reaches.
        run = Run(self._folder / trial.id)
        try:
            return train.fit_on_ray(data.task, data.dataset, config, run)
        finally:
            shutil.rmtree(run.path, ignore_errors=True)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing: Tune saves before it reuses an actor, and a pack starts over after a kill."""

    def reset_config(self, new_config: _PackConfig) -> bool:
        self.config = new_config
        self._begin(new_config["pack"])
        return True


class _Arrivals(tune.Callback):  # type: ignore[misc]
    """Hands each result to the driver. A pack whose process died is tried again one by one; one alone has failed."""

    def __init__(self, on_result: Callable[[TrialResult, int], None], queue: PackQueue) -> None:
        self._on_result, self._queue = on_result, queue

    def __getstate__(self) -> dict[str, object]:
        """Nothing: Tune writes its callbacks to disk for a restore, which the ledger makes unnecessary."""
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: _StepResult, **info: Any
    ) -> None:
        for line in result["results"]:
            self._keep(TrialResult.model_validate_json(line))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """What becomes of a pack whose process died."""
        if not ray.is_initialized():
            return  # the search was interrupted, which is not the pack's fault
        error = " ".join(str(trial.get_error()).split())
        for lost in self._queue.retry(trial.config["pack"]):
            self._keep(build_failure(lost, f"its process ended: {error[:300]}"))

    def _keep(self, result: TrialResult) -> None:
        self._queue.waiting.discard(result.id)
        self._on_result(result, len(self._queue.waiting))
