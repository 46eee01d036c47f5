"""Settings that a search varied: the scale that each is drawn on, and how much each mattered for the loss."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from sp500 import formatting
from sp500.runs.trials import TrialResult

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DECADE = 10
"""A log scale takes values that span as many times the smallest."""
FAR = 4
"""An outlier is as many times further from the best loss than the middle one."""
FEWEST = 8
"""Finished trials below which importance would be noise."""


class Trial(TrialResult):
    """A trial and what it is compared by."""

    loss: float = math.inf
    """The validation loss, its share of the naive one or what `train.monitor` names; infinite if the trial failed."""


@dataclass(frozen=True)
class Setting:
    """A setting that a search varied."""

    key: str
    values: tuple[Any, ...]
    """The different values: numbers by size, others in order of first use."""
    numeric: bool
    log: bool
    """True if its numbers are drawn on a log scale."""


def list_varied(trials: Sequence[Trial]) -> list[Setting]:
    """Return the settings with more than one value among the trials, in the order of the search space."""
    settings = []
    for key in dict.fromkeys(key for trial in trials for key in trial.overrides):
        different = {_as_text(value): value for trial in trials for value in [trial.overrides.get(key)]}
        if len(different) > 1:
            settings.append(_setting(key, list(different.values())))
    return settings


def importance(trials: Sequence[Trial]) -> dict[str, float] | str:
    """Return the share of each varied setting in the variation of the loss, most important first; or why there is none.

    Optuna's fANOVA (Hutter, Hoos and Leyton-Brown 2014) with a seed, so that the same trials give the same shares in
    every version of Optuna: since 5.0 its default looks only at the best tenth, which is two of eighteen trials. A
    loss above `ceiling` counts as that much, else one trial that diverged would be all the variation.
    """
    scored, settings = drop_failed(trials), list_varied(drop_failed(trials))
    losses = [trial.loss for trial in scored]
    if len(scored) < FEWEST:
        return f"it needs {FEWEST} finished trials, and there are {len(scored)}"
    if len(settings) < 2:
        return "it needs two settings that vary"
    if len(set(losses)) < 2:
        return "every trial ended with the same loss"
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    optuna.logging.set_verbosity(verbosity)
    distributions, top = {setting.key: _distribution(setting) for setting in settings}, ceiling(losses)
    for trial in sorted(scored, key=lambda trial: trial.id):
        params = {setting.key: _param(setting, trial.overrides.get(setting.key)) for setting in settings}
        loss = min(trial.loss, top)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=loss))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def drop_failed(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials with a loss."""
    return [trial for trial in trials if math.isfinite(trial.loss)]


def ceiling(losses: Sequence[float]) -> float:
    """Return the end of an axis of losses: the largest, or below what would press the others flat."""
    best, middle = min(losses), median(losses)
    return min(max(losses), best + FAR * (middle - best)) if middle > best else max(losses)


def names(settings: Sequence[Setting]) -> dict[str, str]:
    """Return each key as short as possible but unique: 'lr', or 'train.lr' next to 'model.lr'."""
    short = [setting.key.rsplit(".", 1)[-1] for setting in settings]
    return {
        setting.key: name if short.count(name) == 1 else setting.key
        for setting, name in zip(settings, short, strict=True)
    }


def label(value: Any) -> str:
    """Return a value of a setting in few letters."""
    text = formatting.setting(float(f"{value:.3g}") if isinstance(value, float) else value)
    return text if len(text) <= 12 else f"{text[:11]}\u2026"


def _setting(key: str, values: list[Any]) -> Setting:
    if not all(map(_is_number, values)):
        return Setting(key, tuple(values), numeric=False, log=False)
    values.sort()
    spans = values[0] > 0 and values[-1] / values[0] >= DECADE
    # Even draws from 0 to 0.5 span decades too: the scale on which the values spread more evenly is theirs.
    log = spans and _skew(list(map(math.log, values))) < _skew(values)
    return Setting(key, tuple(values), numeric=True, log=log)


def _skew(values: Sequence[float]) -> float:
    """Return how far the middle value is from the middle of the range, as a share of it."""
    return abs((median(values) - values[0]) / (values[-1] - values[0]) - 0.5)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_text(value: Any) -> str:
    """Return a value as text: 1 and 1.0 are the same, a list and a tuple too."""
    return repr(float(value)) if _is_number(value) else json.dumps(value, default=str)


def _param(setting: Setting, value: Any) -> Any:
    """Return a value as Optuna accepts it: a list becomes text."""
    return float(value) if setting.numeric else _as_text(value)


def _distribution(setting: Setting) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if setting.numeric:
        return FloatDistribution(float(setting.values[0]), float(setting.values[-1]), log=setting.log)
    return CategoricalDistribution([_as_text(value) for value in setting.values])
