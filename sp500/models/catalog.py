"""Every kind of model by name."""

from __future__ import annotations

import json
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from sp500.config import ModelConfig, OwnModel, TrainConfig
from sp500.errors import ConfigError
from sp500.machine.memory import total_bytes
from sp500.models.shape import Shape
from sp500.models.weights import Unfilled
from sp500.plugins import contract
from sp500.plugins.reference import Reference

COPIES = 4
"""Copies of every weight that training keeps in memory: itself, its gradient and two moments of Adam. A process of FSDP
makes the whole model, and then keeps its part of the four."""


def _check_model(own: Reference, model: object) -> nn.Module:
    """Return the model that the user's function made."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{own.path.name}: {own.name} returned {type(model).__name__}, not a torch.nn.Module or an estimator "
            "with fit and predict"
        )
    if not any(weights.requires_grad for weights in model.parameters()):
        raise ConfigError(f"{own.path.name}: {own.name} has no weights to train")
    return model


def _make_own(config: OwnModel, shape: Shape) -> object:
    make = contract.load_model(config.own, config.options)
    return make(config, shape, **config.options)


def is_estimator(config: ModelConfig, shape: Shape) -> bool:
    """Return whether a model is fitted by itself. What a user's function makes, it says once it was called."""
    if not isinstance(config, OwnModel):
        return bool(config.estimator)
    make = contract.load_model(config.own, config.options)
    if isinstance(make, type):
        return contract.is_estimator(make)
    key = json.dumps(config.identity, sort_keys=True)
    if key not in _estimators:
        _estimators[key] = contract.is_estimator(_make_own(config, shape))
    return _estimators[key]


def build_estimator(config: ModelConfig, shape: Shape, train: TrainConfig, *, classes: bool, valid: bool) -> Any:
    """Return the untrained estimator of `config.kind`, with the seed of the training as its random state.

    `classes`: whether targets are classes; `valid`: whether there are validation windows to stop by.
    """
    if not isinstance(config, OwnModel):
        return resolve_name(config.estimator).make(config.used, train, classes, valid)
    estimator: Any = _make_own(config, shape)
    if classes and not hasattr(estimator, "predict_proba"):
        raise ConfigError(
            f"{config.own.path.name}: {config.own.name} has no predict_proba, and the targets are classes; use one that"
            " has it"
        )
    parameters = estimator.get_params() if hasattr(estimator, "get_params") else {}
    seeds = [name for name, value in parameters.items() if name.endswith("random_state") and value is None]
    return estimator.set_params(**dict.fromkeys(seeds, train.seed)) if seeds else estimator


_estimators: dict[str, bool] = {}
"""Whether the models of the user's that this process has made are estimators, by their settings."""


def least_copies(train: TrainConfig) -> int:
    """Return how often a process holds the weights in the host's memory, at least."""
    on_gpu = train.device != "cpu" and torch.cuda.is_available()
    return 1 if on_gpu or train.parallel == "fsdp" else COPIES


def build(config: ModelConfig, shape: Shape, copies: int = COPIES) -> nn.Module:
    """Build the network of `config.kind`: [batch, window, feature] -> [batch, output]. A user's own is left as it is.

    Its last layer, `head`, has weights of zero and the bias `naive_output`, so training starts from the naive
    forecast: the training mean or its log odds. Random weights there forecast with 0.7 times the spread of the targets,
    which daily returns never justify, and early stopping then keeps much of that noise (docs/LOG.md).

    Raises MemoryError if `copies` of the weights do not fit this machine's or container's memory. A node of
    Kubernetes grants any allocation (kubelet sets vm.overcommit_memory to 1), and would kill the whole pod while it is
    filled.
    """
    if isinstance(config, OwnModel):
        return _check_model(config.own, _make_own(config, shape))
    make = partial(resolve_name(config.network), shape, **config.used)
    with torch.device("meta"), Unfilled():
        needed = sum((copies if part.requires_grad else 1) * part.nbytes for part in make().parameters())
    if needed > (total := total_bytes()):
        contents = "weights, gradients and Adam's moments" if copies > 1 else "the whole model"
        raise MemoryError(
            f"training needs at least {needed / 2**30:,.1f} GiB for {contents}; there are "
            f"{total / 2**30:,.1f} GiB. Use a smaller model.hidden or model.layers"
        )
    model: nn.Module = make()
    if not config.starts_naive:
        return model
    nn.init.zeros_(model.get_parameter("head.weight"))
    nn.init.constant_(model.get_parameter("head.bias"), shape.naive_output)
    return model
