"""Ray Tune: packs of trials side by side.

A Tune trial runs a pack of configs (see `sp500.tuning.packing`), or one config where a stopper decides at its rungs:
Tune ends what the collector ends, and its own schedulers decide nothing. Actors are reused and the data is put into the
object store once: without that, 18 trials of a second each took three times as long as a for-loop (55 to 62 s against
20 s on two cores). A pack takes one CPU and one thread. Suggestions, results and what happens after a kill are the
collector's task, not Tune's.
"""

from __future__ import annotations

import gc
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import ray
from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from sp500.config import RunConfig
from sp500.distributed import capacity, preflight, session
from sp500.errors import SP500Error
from sp500.formatting import some
from sp500.machine.memory import limit_memory
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult
from sp500.training.loop import FitResult
from sp500.tuning import trial_data
from sp500.tuning.arm import Collector, Report
from sp500.tuning.limits import Limits
from sp500.tuning.packing.scheduler import run_pack_with_watchdog, run_to_rungs_with_watchdog, split_into_packs
from sp500.tuning.sequential import STATES, ConfigArm, run_trial
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import Datasets, TrialData

_PackConfig = dict[str, list[ConfigTrial]]
"""The config of a Tune trial: a pack under the key `pack`."""


class _StepResult(TypedDict):
    """The report of a step to Tune."""

    loss: float
    results: list[str]
    """A TrialResult each, as JSON."""
    rung: int | None
    """Where its one config waits for an answer."""
    value: float
    """What a stopper compares there."""
    done: bool


class RayArm(ConfigArm):
    """Packs of configs under Ray Tune, on the cluster that is being connected."""

    name = "ray"

    def __init__(
        self, base: RunConfig, datasets: Datasets, limits: Limits, run: Run, background: session.BackgroundRay
    ) -> None:
        super().__init__(base, datasets, limits, run.path.resolve() / STATES)
        self._run, self._background = run, background
        # In the run's folder, which every node reaches.
        self._folder = run.path.resolve() / ".ray"
        self._slots = 1

    def __enter__(self) -> RayArm:
        self._background.wait()
        return self

    def __exit__(self, *error: object) -> None:
        """Begin to end Ray."""
        self._background.begin_end()

    def split(self, trials: Sequence[ConfigTrial]) -> list[list[ConfigTrial]]:
        """Return packs for as many actors as run at once; trials with workers are each a pack."""
        size = "off" if self.limits.workers else self.limits.pack
        return split_into_packs(trials, size, self.limits.spread(self._slots))

    def run(self, collector: Collector[ConfigTrial]) -> None:
        """Run packs on the cluster. Raises SP500Error for trials without a result."""
        self._count_cores()
        if not collector.is_done:
            preflight.check_shared_storage(self._run.path)
            self._run.write_cluster(dict(self.cluster))
            self._run_on_tune(collector)
            # Handles of actors that Python frees later, while Ray ends in its thread, would end the process.
            gc.collect()
            self._count_cores()  # an autoscaler may have added nodes

    def _count_cores(self) -> None:
        self.cluster = capacity.resources()
        self.cores = int(self.cluster.get("CPU", 0))

    def _run_on_tune(self, collector: Collector[ConfigTrial]) -> None:
        # Tune resumes an old experiment of the same name; the ledger is what counts here.
        shutil.rmtree(self._folder, ignore_errors=True)
        share, self._slots = _share(self.limits.workers, self.base.train.device)
        stopper = _RungStopper(collector)
        trainable = tune.with_parameters(
            _Trainable, datasets=dict(self.datasets), limits=self.limits, folder=self._folder, states=self.states
        )
        tuner = tune.Tuner(
            tune.with_resources(trainable, share),
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=_PackSearcher(collector),
                num_samples=-1,
                # Also how many actors may be on their way at once: Tune's default for a searcher is one.
                max_concurrent_trials=self._slots,
                # A new actor first imports torch and Tune: 2.5 s for each pack (docs/LOG.md).
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self._folder),
                verbose=0,
                # Tune's own one for notebooks clears the cell's output, though it reports nothing at this verbosity.
                progress_reporter=tune.CLIReporter(),
                callbacks=[_Arrivals(collector)],
                stop=stopper,
            ),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Tune's own deprecations, which a user cannot change
            grid = session.run_in_thread(tuner.fit, stopper.stop)
        if collector.running:
            errors = "; ".join(str(error) for error in grid.errors)[:500]
            raise SP500Error(
                f"Ray Tune ended without {some(len(collector.running), 'trial')}; --resume runs them. {errors}"
            )
        shutil.rmtree(self._folder, ignore_errors=True)


def _share(workers: int, device: str) -> tuple[dict[str, float], int]:
    """Return a pack's share of the cluster, and how many packs run at once.

    A trial of N workers takes no CPU from them itself, or all could wait for each other for ever; but Tune wants it to
    take something. Raises ResourcesError for GPUs that are not there.
    """
    have = capacity.most()
    gpu, gpus = preflight.use_gpu(device, 1), int(have["GPU"])
    preflight.worker_share(max(workers, 1), gpu=gpu)
    slots = max((gpus if gpu else int(have["CPU"])) // max(workers, 1), 1)
    return ({"memory": 1} if workers else {"cpu": 1, "gpu": int(gpu)}), slots


class _RungStopper(tune.Stopper):  # type: ignore[misc]
    """Ends the search once `stop` was called, and a config that the collector ends at a rung."""

    def __init__(self, collector: Collector[ConfigTrial]) -> None:
        self._collector, self._asked = collector, False

    def stop(self) -> None:
        self._asked = True

    def __call__(self, trial_id: str, result: _StepResult) -> bool:
        if self._asked or result["rung"] is None:
            return self._asked
        reached = TrialResult.model_validate_json(result["results"][0])
        return not self._collector.goes_on(Report(reached, result["rung"], result["value"]))

    def stop_all(self) -> bool:
        return self._asked


class _PackSearcher(Searcher):  # type: ignore[misc] # Ray has no types
    """Hands the collector's packs to Tune, one per call."""

    def __init__(self, collector: Collector[ConfigTrial]) -> None:
        super().__init__(metric="loss", mode="min")
        self._collector = collector

    def suggest(self, trial_id: str) -> _PackConfig | str | None:
        """Return the next pack; None while one may come back, FINISHED when all are done."""
        del trial_id
        if pack := self._collector.take():
            return {"pack": pack}
        return None if self._collector.running else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Do nothing: the suggester gets each result as it arrives."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a search continues from the ledger."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing, for the same reason."""


class _Trainable(tune.Trainable):  # type: ignore[misc]
    """One actor. A step of Tune is what a pack does until some of its configs are done."""

    def setup(self, config: _PackConfig, datasets: Datasets, limits: Limits, folder: Path, states: Path) -> None:
        self._datasets, self._limits, self._folder, self._states = datasets, limits, folder, states
        if limits.memory:
            limit_memory(limits.memory)
        if not limits.workers:  # else the trial's own workers do
            capacity.withdraw()
        self._begin(config["pack"])

    def _begin(self, pack: list[ConfigTrial]) -> None:
        data = self._datasets[trial_data.key(pack[0].config)]
        self._left, self._loss = len(pack), math.inf
        limits = self._limits
        if limits.workers:
            # Trained in `step`: what begins an actor should not wait for a whole training.
            self._coming: Iterator[list[TrialResult] | Report] = (
                [run_trial(data, trial, limits.timeout, self._fit_on_ray)] for trial in pack
            )
        elif limits.stop:
            self._coming = run_to_rungs_with_watchdog(data, pack[0], limits, self._states)
        else:
            self._coming = run_pack_with_watchdog(data, pack, limits)

    def step(self) -> _StepResult:
        """Return the results of the next configs that are done, or the one that has come to a rung."""
        upcoming = next(self._coming)
        if isinstance(upcoming, Report):
            results, rung, value = [upcoming.result], upcoming.rung, upcoming.value
        else:
            results, rung, value = upcoming, None, 0.0
        self._left -= len(results) if rung is None else 0
        # A failed trial has no loss; infinity keeps Tune's own book-keeping in order.
        self._loss = min(self._loss, *(result.score_or_infinity for result in results))
        lines = [result.model_dump_json() for result in results]
        return {"loss": self._loss, "results": lines, "rung": rung, "value": value, "done": not self._left}

    def _fit_on_ray(self, data: TrialData, trial: ConfigTrial) -> FitResult:
        """Train a trial that is itself a run of Ray Train."""
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
    """Hands each result to the collector, and each pack whose process died."""

    def __init__(self, collector: Collector[ConfigTrial]) -> None:
        self._collector = collector

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: _StepResult, **info: Any
    ) -> None:
        for line in result["results"] if result["rung"] is None else ():
            self._collector.add(TrialResult.model_validate_json(line))

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Queue the rest of a pack whose process died to run again."""
        if not ray.is_initialized():
            return  # the search was interrupted, which is not the pack's fault
        error = " ".join(str(trial.get_error()).split())
        self._collector.lose(trial.config["pack"], f"its process ended: {error[:300]}")
