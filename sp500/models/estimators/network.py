"""An estimator of any kind, fitted and asked in one way; fitted, it is a network for all that comes after."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from sp500.errors import DataError


@runtime_checkable
class Estimator(Protocol):
    """What is fitted: X [window, column] is the flattened windows, y [window] their targets.

    Of classes it also has predict_proba and classes_, as scikit-learn's have.
    """

    def fit(self, X: np.ndarray, y: np.ndarray) -> object:
        """Fit it. Also with `X_valid` and `y_valid` by name, if it can stop early by them."""
        ...

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return forecasts [window], or [window, output]."""
        ...


@runtime_checkable
class Stored(Protocol):
    """An estimator with files of its own."""

    def save(self, folder: str) -> None:
        """Write it into a folder."""
        ...

    def load(self, folder: str) -> None:
        """Read what `save` wrote."""
        ...


@cache
def _find_threads() -> ThreadpoolController:
    """Return the pools of threads of the libraries that are loaded."""
    return ThreadpoolController()


def fit(estimator: Any, x: np.ndarray, y: np.ndarray, valid: tuple[np.ndarray, np.ndarray] | None) -> None:
    """Fit an estimator, with the validation windows if its `fit` takes them, by the names of sp500 or scikit-learn."""
    parameters = inspect.signature(estimator.fit).parameters
    stops = getattr(estimator, "early_stopping", None) is True
    names = [("X_valid", "y_valid"), *([("X_val", "y_val")] if stops else [])]
    wanted = next((pair for pair in names if set(pair) <= parameters.keys()), None)
    estimator.fit(x, y, **(dict(zip(wanted, valid, strict=True)) if wanted and valid else {}))


class FittedEstimator(nn.Module):
    """A fitted estimator as a network: outputs [window, output] of x [window, row, ...].

    Of classes the outputs are log odds, or for several the logarithms of the probabilities: what a network gives.
    """

    def __init__(self, estimator: Any, *, classes: bool, outputs: int) -> None:
        super().__init__()
        self.estimator = estimator
        self._classes, self._outputs = classes, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of windows on the CPU, in their number type."""
        # Of few windows, threads wait for each other longer than they compute.
        with _find_threads().limit(limits=1, user_api="openmp"):
            return next(self.stages(x.flatten(1).numpy(), last=True))

    def stages(self, x: np.ndarray, *, last: bool = False) -> Iterator[Tensor]:
        """Yield the outputs [window, output] after each stage of fitting, such as a tree; only after the last one."""
        ask = "predict_proba" if self._classes else "predict"
        staged = None if last else getattr(self.estimator, f"staged_{ask}", None)
        answers = staged(x) if staged else [getattr(self.estimator, ask)(x)]
        kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
        for answer in answers:
            numbers = np.asarray(answer, np.float64)
            outputs = self._to_logits(numbers, kind) if self._classes else numbers.reshape(len(x), -1)
            if outputs.shape != (len(x), self._outputs):
                raise DataError(
                    f"{type(self.estimator).__name__}: {ask} gives {list(numbers.shape)} for {len(x)} windows, expected"
                    f" {self._outputs} for each"
                )
            yield torch.from_numpy(outputs.astype(kind))

    def _to_logits(self, probabilities: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
        """Return log odds of the second of two classes, or log probabilities; a class that was not seen has least."""
        seen = np.asarray(self.estimator.classes_).astype(np.int64)
        whole = np.zeros((len(probabilities), max(self._outputs, 2)))
        whole[:, seen] = probabilities
        logits = np.log(np.clip(whole, np.finfo(kind).eps, 1))
        return logits[:, 1:] - logits[:, :1] if self._outputs == 1 else logits
