"""The recipe by which a trained run answers again: `recipe.json`, written when its training has ended.

It holds what was fitted on the training part (`Dataset.state`), the shape of a window, the hash of the weights, and one
test window with the model's answer. A process that loads the run can check that the model answers as it did.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, JsonValue
from safetensors.torch import load
from torch import nn

from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import CheckpointError, ConfigError
from sp500.formatting import reference_name
from sp500.machine.disk import write_atomic
from sp500.models import catalog
from sp500.models import weights as trained
from sp500.runs import checksums
from sp500.training import estimator
from sp500.training.checkpoint import read_weights
from sp500.training.step import DTYPES
from sp500.training.task import Task

FILE, CHECKPOINTS = "recipe.json", "checkpoints"


class Array(BaseModel):
    """Numbers as they lie in memory."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    shape: tuple[int, ...]
    base64: str

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        """Return the array as plain data."""
        data = np.ascontiguousarray(array).tobytes()
        return cls(dtype=str(array.dtype), shape=array.shape, base64=base64.b64encode(data).decode())

    @property
    def numbers(self) -> np.ndarray:
        """The array."""
        return np.frombuffer(base64.b64decode(self.base64), self.dtype).reshape(self.shape)


class Recipe(BaseModel):
    """The contents of `recipe.json`."""

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    dtype: str
    """Of weights and outputs."""
    window: int
    row: tuple[int, ...]
    row_dtype: str
    targets: tuple[int, ...]
    """Shape of a window's targets: () for one."""
    target_dtype: str
    outputs: int
    target_scale: float
    naive_output: float
    state: dict[str, JsonValue]
    """What the task fitted: `Dataset.state`."""
    weights_sha256: str
    test_input: Array
    """x of the first test window [1, window, *row]."""
    test_output: Array
    """The model's answer to it."""

    @property
    def features(self) -> frozenset[str]:
        """Names of the features of a task of prices. Empty for other tasks."""
        names = self.state.get("features")
        return frozenset(map(str, names)) if isinstance(names, list) else frozenset()

    @property
    def horizon(self) -> int:
        """Sessions from the last price of a window to its target, for a task of prices. 0 for other tasks."""
        sessions = self.state.get("horizon")
        return int(sessions) if isinstance(sessions, int | float) else 0

    @property
    def dataset(self) -> Dataset:
        """The dataset without its windows: all that a task makes a model from."""
        none = Windows(
            rows=np.empty((0, *self.row), self.row_dtype),
            starts=np.empty(0, np.int64),
            targets=np.empty((0, *self.targets), self.target_dtype),
            length=self.window,
        )
        return Dataset(none, None, none, self.target_scale, self.naive_output, {"sha256": ""}, self.outputs, self.state)


class Loaded(NamedTuple):
    """A recipe and the model that it describes."""

    recipe: Recipe
    model: nn.Module


def write(run: Path, task: Task, config: RunConfig, dataset: Dataset) -> nn.Module:
    """Keep the recipe of the run's best weights, trained on `dataset`, and return the model with these weights.

    Raises ConfigError for a state that is not plain data.
    """
    try:
        state = json.loads(json.dumps(dataset.state, allow_nan=False))
    except (TypeError, ValueError) as error:
        name = reference_name(config.task)
        raise ConfigError(f"task {name}: Dataset.state is not plain data ({error}); use lists and numbers") from None
    model, digest = _read_model(run / CHECKPOINTS / "best", task, config, dataset)
    x = first_window(dataset.test)
    recipe = Recipe(
        fingerprint=config.fingerprint,
        dtype=config.train.dtype,
        window=dataset.window,
        row=dataset.row,
        row_dtype=str(dataset.test.rows.dtype),
        targets=dataset.test.targets.shape[1:],
        target_dtype=str(dataset.test.targets.dtype),
        outputs=dataset.outputs,
        target_scale=dataset.target_scale,
        naive_output=dataset.naive_output,
        state=state,
        weights_sha256=digest,
        test_input=Array.of(x),
        test_output=Array.of(answer(model, x)),
    )
    write_atomic(run / FILE, checksums.seal(recipe))
    return model


def read(run: Path, task: Task, config: RunConfig, checkpoints: str = CHECKPOINTS) -> Loaded:
    """Read the recipe of a run's folder and its model. Raises CheckpointError for a missing or changed file."""
    path, weights = run / FILE, run / checkpoints / "best"
    try:
        recipe = Recipe.model_validate_json(checksums.unseal(path.read_bytes()))
        expected = recipe.weights_sha256 if checkpoints == CHECKPOINTS else ""
        model, _ = _read_model(weights, task, config, recipe.dataset, expected)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror}); is the run trained?") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not a recipe ({error})") from None
    return Loaded(recipe, model)


def _read_model(
    folder: Path, task: Task, config: RunConfig, dataset: Dataset, expected: str = ""
) -> tuple[nn.Module, str]:
    """Return the model of a version and the hash of its weights. Raises CheckpointError for another than expected."""
    estimated = catalog.is_estimator(config.model, dataset)
    weights = b"" if estimated else read_weights(folder)
    digest = estimator.hash_files(folder) if estimated else hashlib.sha256(weights).hexdigest()
    if expected and digest != expected:
        raise CheckpointError(f"{folder} does not hold the weights of {folder.parent.parent / FILE}")
    if estimated:
        return estimator.read(folder, task, config, dataset), digest
    model = task.model(config, dataset).to(DTYPES[config.train.dtype])
    trained.load(model, load(weights))
    return model, digest


def first_window(windows: Windows) -> np.ndarray:
    """Return X [1, window, *row] of the first window."""
    return windows.rows[windows.starts[0] : windows.starts[0] + windows.length][None]


@torch.no_grad()
def answer(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """Return the model's outputs for x [batch, window, *row]."""
    model.eval()
    return np.asarray(model(torch.from_numpy(np.array(x))))  # a copy: what was read from a file cannot be written
