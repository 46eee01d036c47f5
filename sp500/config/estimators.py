"""Checks of the settings of an estimator, which is fitted by itself and not by the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp500.config import kinds
from sp500.config.train import TrainConfig
from sp500.formatting import reference_name

if TYPE_CHECKING:
    from sp500.config import RunConfig

USED = frozenset({"loss", "quantile", "refit", "seed", "dtype", "device", "threads"})
"""Keys of `train` that decide something about an estimator, or how it is judged."""


def check_settings(config: RunConfig) -> None:
    """Raise ValueError for a setting that an estimator does not use, and for a forecast or a loss that it has not."""
    kind, model, train = reference_name(config.model.kind), config.model, config.train
    usual = [type(config).model_fields["train"].default, TrainConfig(), TrainConfig(early_stop_patience=0)]
    of_task = config.task_kind.defaults.get("train", {})
    for key in sorted(TrainConfig.model_fields.keys() - USED):
        value = getattr(train, key)
        if value not in [*(getattr(default, key) for default in usual), of_task.get(key)]:
            raise ValueError(
                f"train.{key} {value} is not used by model.kind {kind}, which is fitted without the training loop; "
                "leave it out"
            )
    if train.device == "cuda":
        raise ValueError(f"train.device cuda: model.kind {kind} is fitted on the CPU; leave it out")
    if model.own:
        return
    if (forecasts := config.task_kind.forecasts) and forecasts not in model.forecasts:
        able = ", ".join(sorted(model.forecasts))
        raise ValueError(f"model.kind {kind} forecasts {able}, and the targets of task {config.task} are {forecasts}")
    if train.loss not in model.losses:
        able = ", ".join(sorted(model.losses))
        raise ValueError(f"train.loss {train.loss} is not minimised by model.kind {kind}; use {able}")


def list_unused(kind: str) -> frozenset[str]:
    """Return the settings of the training, as `train.KEY`, that a built-in kind of model does not use."""
    of, keys = kinds.models().get(kind), TrainConfig.model_fields.keys() - USED
    return frozenset(f"train.{key}" for key in keys) if of and of.estimator else frozenset()


def reset_unused(train: TrainConfig) -> TrainConfig:
    """Return settings of the training with the usual values of those that an estimator does not use."""
    return TrainConfig(**{key: getattr(train, key) for key in USED})


def explain_alone(kind: str) -> str:
    """Return why an estimator is fitted in one process from arrays in memory."""
    return f"model.kind {reference_name(kind)} is fitted once on all windows, in the memory of one process"
