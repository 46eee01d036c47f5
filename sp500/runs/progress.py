"""Progress of a run, from the files that it appends to: epochs.jsonl of a training, trials.jsonl of a search.

What comes after the last epoch or trial, such as the test, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import yaml
from pydantic import ValidationError

from sp500.config import TrainConfig
from sp500.errors import ConfigError
from sp500.progress import Meter, RunProgress, Unit
from sp500.runs.experiments import SEARCHES
from sp500.runs.record import EpochMetrics, PlannedSearch
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult, read_trials


def read(run: Run) -> tuple[datetime, RunProgress] | None:
    """Read when the last attempt at a run began, and its progress; None if its files do not contain it.

    They do not of a run that has not begun, and of experiments other than one training or one search. A last line that
    is still being written does not count. Raises ConfigError for a file that is damaged.
    """
    begun = run.start_record()
    if begun is None:
        return None
    if begun.experiment == "train":
        meter = epoch_meter(_settings(run.path, begun.config["train"]), _seeds(run.path), begun.started)
        return begun.started, of_epochs(run.epochs(), meter)
    if begun.experiment in SEARCHES and begun.planned:
        return begun.started, of_trials(read_trials(run.path), begun.planned)
    return None


def epoch_meter(train: TrainConfig, seeds: int, since: datetime) -> Meter:
    """Return the meter of a training whose attempt began at `since`.

    Epochs for further seeds and of a refit leave no lines. They count as time that is left, as many as they can be.
    """
    fits = seeds * (2 if train.refit else 1)
    at_most = bool(train.early_stop_patience or train.max_steps or train.refit)
    more = (fits - 1) * train.epochs
    return Meter("epoch", train.epochs, since=since.timestamp(), at_most=at_most, more=more)


def of_epochs(epochs: Sequence[EpochMetrics], meter: Meter) -> RunProgress:
    """Return the progress of a training."""
    for epoch in epochs:
        meter.add(unit(epoch))
    return meter.progress(epochs[-1].epoch if epochs else 0)


def unit(epoch: EpochMetrics) -> Unit:
    """Return an epoch as progress counts it."""
    loss = epoch.valid_loss if epoch.best_loss is None else epoch.best_loss
    return Unit(epoch.finished, epoch.seconds, epoch.train_seconds, epoch.samples, loss)


def of_trials(trials: Iterable[TrialResult], planned: PlannedSearch) -> RunProgress:
    """Return the progress of a search."""
    meter = Meter("trial", planned.trials, since=planned.at.timestamp(), parallel=True)
    units = _trial_units(trials)
    for trial_unit in units:
        meter.add(trial_unit)
    return meter.progress(len(units))


def units(run: Run) -> list[Unit]:
    """Read what earlier attempts at a training or a search have done. Raises ConfigError for a file that is damaged."""
    return [*map(unit, run.epochs()), *_trial_units(read_trials(run.path))]


def _trial_units(trials: Iterable[TrialResult]) -> list[Unit]:
    """Return the trials as progress counts them; of one that ran twice the last result counts."""
    last = {trial.id: trial for trial in trials}
    return [
        Unit(trial.finished, trial.seconds, samples=trial.samples, loss=trial.valid_loss) for trial in last.values()
    ]


def _settings(folder: Path, train: object) -> TrainConfig:
    try:
        return TrainConfig.model_validate(train)
    except ValidationError as error:
        raise ConfigError(f"{folder / 'started.json'}: train: {error.errors()[0]['msg']}") from None


def _seeds(folder: Path) -> int:
    """Read the number of seeds of a model: a setting of the experiment, which a run's record does not have."""
    path = folder / "config.yaml"
    try:
        return int(yaml.safe_load(path.read_text()).get("seeds", 1))
    except (OSError, yaml.YAMLError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: seeds cannot be read ({error})") from error
