"""Trials of configs, and one after another in this process: the baseline that a parallel search has to beat.

At its best: the data is prepared once, one torch thread (faster than two for models of this size: 20 s against 52 s for
18 of them on two cores), a fused optimiser, no checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sp500.config import RunConfig
from sp500.errors import ConfigError, SP500Error, attempt
from sp500.machine.memory import is_out_of_memory, limit_memory
from sp500.models import catalog
from sp500.runs.trials import TrialResult
from sp500.training import estimator
from sp500.training.fitting import fit_model
from sp500.training.loop import FitResult, fit
from sp500.training.pause import PausedTraining
from sp500.training.task import Traded
from sp500.training.worker import SoloWorker, device
from sp500.tuning import trial_data
from sp500.tuning.arm import Arm, Collector, Report
from sp500.tuning.limits import Limits, deadline
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import Datasets, TrialData

STATES = Path(".trials")
"""The folder of a run with the states of trials at their last rung."""
Fit = Callable[[TrialData, ConfigTrial], FitResult]


class ConfigArm(Arm[ConfigTrial]):
    """An arm for trials of configs, each on one of the datasets. `states`: the folder of those at a rung."""

    def __init__(self, base: RunConfig, datasets: Datasets, limits: Limits, states: Path = STATES) -> None:
        self.base, self.datasets, self.limits, self.states = base, datasets, limits, states

    def data(self, pack: Sequence[ConfigTrial]) -> TrialData | str:
        """Return the dataset that a pack shares."""
        return self.datasets[trial_data.key(pack[0].config)]

    def discard(self, trial: str) -> None:
        """Remove the state of a trial at its last rung."""
        if self.limits.stop:
            state_path(self.states, trial).unlink(missing_ok=True)

    def build_failure(self, trial: ConfigTrial, reason: str) -> TrialResult:
        """Return the result of a trial that ended without one."""
        return build_failure(trial, reason)

    def run_to_end(self, collector: Collector[ConfigTrial], pack: Sequence[ConfigTrial]) -> None:
        """Train the one config of a pack from rung to rung in this process, to its end or until it is stopped."""
        for report in run_to_rungs(self.data(pack), pack[0], self.limits, self.states):
            if not collector.goes_on(report):
                return


class SequentialArm(ConfigArm):
    """One config at a time in this process."""

    name = "sequential"
    at_once = 1

    def run(self, collector: Collector[ConfigTrial]) -> None:
        """Train one after another."""
        timeout = self.limits.timeout
        if timeout and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"trial_timeout {timeout:g}: mode sequential ends a trial by a signal, which reaches the main "
                "thread only, and this is another; use mode packed, or call search in the main thread"
            )
        if self.limits.memory:
            limit_memory(self.limits.memory)
        while pack := collector.take():
            if not self.limits.stop:
                collector.add(run_trial(self.data(pack), pack[0], timeout))
                continue
            self.run_to_end(collector, pack)


def fit_alone(data: TrialData, trial: ConfigTrial) -> FitResult:
    """Train one config in this process. The test split is not used here."""
    estimator.check(trial.config, data.dataset)
    worker = SoloWorker(device(trial.config.train.device))
    return fit_model(data.task, data.dataset, trial.config, worker, splits=("valid",))


def run_trial(
    data: TrialData | str, trial: ConfigTrial, timeout: float | None = None, fit_trial: Fit = fit_alone
) -> TrialResult:
    """Train one config. A failure is a result with its reason, and does not stop the other trials."""
    started, cpu_started = time.perf_counter(), time.process_time()

    def train() -> TrialResult:
        """Train it and return its result."""
        if isinstance(data, str):
            raise SP500Error(data)
        with deadline(timeout):
            result = fit_trial(data, trial)
        return build_result(
            data,
            trial,
            result.outputs["valid"],
            valid_loss=result.best_loss,
            monitored=result.best_score,
            best_epoch=result.best_epoch,
            epochs=len(result.epochs),
            samples=result.samples,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu_started if fit_trial is fit_alone else None,
        )

    return attempt(train, lambda error: build_failure(trial, why(error), time.perf_counter() - started))


def run_to_rungs(data: TrialData | str, trial: ConfigTrial, limits: Limits, states: Path) -> Iterator[Report]:
    """Train one config from rung to rung, and yield it at each and at its end. To stop it, take no more.

    Its state is on the disk before a rung is reported. It begins with the last state of an earlier attempt, whose rung
    it reports again.
    """
    assert limits.stop
    identity = "" if isinstance(data, str) else data.dataset.sha256[:16]
    place = state_path(states, trial.id), f"{trial.id}-{identity}"
    (at, earlier), spent, cpu_started = PausedTraining(*place).position(), 0.0, time.process_time()
    for rung in (*limits.stop.make().rungs(at - 1, trial.config.train.epochs - 1), None):
        parts = list[FitResult]()
        timeout = limits.timeout and max(limits.timeout - earlier - spent, 0.01)
        result = run_trial(data, trial, timeout, partial(_fit_part, PausedTraining(*place, rung), rung, parts))
        spent += result.seconds
        is_paused = result.status == "ok" and parts[0].paused
        cpu = time.process_time() - cpu_started if result.status == "ok" and not at else None
        result = result.model_copy(update={"seconds": earlier + spent, "cpu_seconds": cpu})
        yield Report(result, rung, _value(parts[0], data)) if is_paused else Report(result)
        if not is_paused:
            return


def _fit_part(
    keeper: PausedTraining, until: int | None, parts: list[FitResult], data: TrialData, trial: ConfigTrial
) -> FitResult:
    """Train one config until a rung, or to its end, and add the outcome to `parts`.

    An estimator is fitted at once: it passes no rung.
    """
    if catalog.is_estimator(trial.config.model, data.dataset):
        parts.append(fit_alone(data, trial))
        return parts[0]
    worker = SoloWorker(device(trial.config.train.device))
    parts.append(fit(data.task, data.dataset, trial.config, worker, keeper, splits=("valid",), until=until))
    return parts[0]


def _value(part: FitResult, data: TrialData | str) -> float:
    """Return the best trained loss so far as a share of the naive one, so that trials on different data compare.

    Or what train.monitor names. Without the untrained model: where no epoch beats the naive forecast yet, all trials
    would tie.
    """
    if part.best_score is not None:
        return part.best_score
    loss = min(epoch.valid_loss for epoch in part.epochs if epoch.valid_loss is not None)
    assert isinstance(data, TrialData)
    return loss / data.naive_loss if data.naive_loss else loss


def state_path(states: Path, trial: str) -> Path:
    """Return the file of a trial at its last rung."""
    return states / f"{trial}.state"


def build_result(data: TrialData, trial: ConfigTrial, output: np.ndarray, **facts: Any) -> TrialResult:
    """Return the result of a trial that ended well with these outputs [window, output] on the validation windows."""
    task, dataset = data.task, data.dataset
    assert dataset.valid is not None
    return TrialResult(
        id=trial.id,
        overrides=trial.overrides,
        status="ok",
        naive_loss=data.naive_loss,
        valid_excess_sharpe=task.excess_sharpe(output, dataset.valid, dataset) if isinstance(task, Traded) else None,
        dataset=trial_data.name(trial.config),
        finished=datetime.now(UTC),
        **facts,
    )


def build_failure(trial: ConfigTrial, reason: str, seconds: float = 0.0) -> TrialResult:
    """Return the result of a trial that did not end well."""
    return TrialResult(
        id=trial.id,
        overrides=trial.overrides,
        status="failed",
        reason=reason,
        seconds=seconds,
        dataset=trial_data.name(trial.config),
        finished=datetime.now(UTC),
    )


def why(error: BaseException) -> str:
    """Return the reason that a failed trial reports."""
    if is_out_of_memory(error):
        return f"out of memory: {error or 'no more could be had'}"
    return str(error) if isinstance(error, SP500Error) else f"{type(error).__name__}: {error}"
