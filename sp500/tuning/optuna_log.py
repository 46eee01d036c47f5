"""A search as Optuna knows it: a study in memory, or an SQLite file that optuna-dashboard opens.

The ledger is what counts; the file is a copy of it for a reader, replaced when the search ends.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL

from sp500.runs.results import Overrides
from sp500.runs.trials import TrialResult
from sp500.tuning.axes import Axis, Choice, Integers, Space, encode


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's name for each axis, by dotted key."""
    return {key: _distribution(axis) for key, axis in space.axes.items()}


def params(overrides: Overrides) -> dict[str, object]:
    """Return values in Optuna's form. A list becomes its JSON."""
    return {key: encode(value) for key, value in overrides.items()}


def overrides(space: Space, params: Mapping[str, Any]) -> Overrides:
    """Return the space's own values for Optuna's: the inverse of `params`."""
    return {key: _decode(space.axes[key], value) for key, value in params.items()}


def study(space: Space, results: Iterable[TrialResult]) -> optuna.Study:
    """Return a study in memory with these results, without those whose settings or values the space does not have."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    in_memory = optuna.create_study(direction="minimize")
    in_memory.add_trials([to_frozen_trial(space, result) for result in results if space.contains(result.overrides)])
    return in_memory


def to_frozen_trial(space: Space, result: TrialResult) -> FrozenTrial:
    """Return a result as a trial that is complete, or failed if it has no score. User attrs: id, reason, loss, seconds.

    Raises ValueError for a result that is not of the space.
    """
    score = result.score if result.status == "ok" else None
    scored = score is not None and math.isfinite(score)
    trial = optuna.trial.create_trial(
        state=TrialState.COMPLETE if scored else TrialState.FAIL,
        value=score if scored else None,
        params=params(result.overrides),
        distributions={key: distributions(space)[key] for key in result.overrides},
        user_attrs={"id": result.id, "reason": result.reason, "loss": result.valid_loss, "seconds": result.seconds},
    )
    # Optuna's clock is local time without a zone.
    ended = result.finished.astimezone() if result.finished else datetime.now()
    trial.datetime_complete = ended.replace(tzinfo=None)
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=result.seconds)
    return trial


def write(path: Path, name: str, space: Space, results: Iterable[TrialResult]) -> None:
    """Write the study `name` with these results to an SQLite file, whole or not at all."""
    trials = study(space, results).trials
    temporary = path.resolve().with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    url = URL.create("sqlite", database=str(temporary)).render_as_string()  # a folder's name may have a ?
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"factory": _Hasty}})
    try:
        stored = optuna.create_study(storage=storage, study_name=name, direction="minimize")
        stored.add_trials(trials)
    finally:
        storage.remove_session()
        storage.engine.dispose()
    temporary.replace(path)


class _Hasty(sqlite3.Connection):
    """Lets the system choose when pages reach the disk: 1,000 results take 8 s, not 24 s."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA synchronous = OFF")


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution([encode(value) for value in axis.values])
    if isinstance(axis, Integers):
        return IntDistribution(axis.low, axis.high, log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _decode(axis: Axis, value: Any) -> Any:
    return next(own for own in axis.values if encode(own) == value) if isinstance(axis, Choice) else value
