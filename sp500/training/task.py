"""The interface of a problem that the loop needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from torch import Tensor, nn
from torch.optim import Optimizer

from sp500.config import RunConfig
from sp500.data.batches import Batch
from sp500.data.prices import Prices
from sp500.data.windows import Dataset, Windows
from sp500.models import catalog
from sp500.runs.details import Breakdown
from sp500.runs.results import Metrics
from sp500.training import optimizer
from sp500.training.trainer import Trainer


@runtime_checkable
class Task(Protocol):
    """A problem: its data, its loss, how its forecasts are judged. Plain data, so that it can be sent to workers.

    A class that inherits from this one has to write `prepare`, `loss` and `judge`.
    """

    @property
    def made_by_workers(self) -> bool:
        """True if every worker can make the data itself; otherwise the driver prepares it once and shares it."""
        return False

    @abstractmethod
    def prepare(self, config: RunConfig) -> Dataset:
        """Return the dataset. Raises DataError."""
        ...

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        """Return the untrained network, from x of a batch to outputs: [batch, output], or [batch, window, output]."""
        return catalog.build(config.model, dataset, catalog.least_copies(config.train))

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum over the batch of the loss of these outputs against target [batch] or [batch, window]."""
        ...

    def optimizer(self, model: nn.Module, config: RunConfig) -> Optimizer:
        """Return the optimiser of a model: by default that which `train.optimizer` names."""
        return optimizer.build(model, config)

    def optimizers(self, model: nn.Module, config: RunConfig) -> dict[str, Optimizer]:
        """Return optimisers by name. Each step updates by all of them."""
        return {optimizer.MAIN: self.optimizer(model, config)}

    def kept(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the few numbers [batch, number] that a window is judged by: by default its outputs."""
        return output

    @abstractmethod
    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return `valid`, `test` and `naive` metrics from what is kept [window, number] per split."""
        ...

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return one row per window: what was kept, and the target if that is one number."""
        columns = {f"output_{number}": output[:, number] for number in range(output.shape[1])}
        return pd.DataFrame(columns | ({"target": windows.targets} if windows.targets.ndim == 1 else {}))


@dataclass(frozen=True)
class Sums:
    """A number of an epoch as its sum over windows and what that is divided by, so that workers and batches add up."""

    total: Tensor | float
    count: Tensor | float


@runtime_checkable
class Measuring(Protocol):
    """A task that measures more than the loss after each epoch."""

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Sums]:
        """Return numbers by name of outputs [batch, output] against the targets [batch] of validation windows."""
        ...


@runtime_checkable
class Stepping(Protocol):
    """A task with a training step of its own, such as a GAN's."""

    def step(self, trainer: Trainer, batch: Batch) -> Tensor:
        """Update the weights by `trainer.update`. Returns the loss to report, summed over this worker's windows."""
        ...


@runtime_checkable
class Transforming(Protocol):
    """A task that changes training windows at random."""

    def transform(self, x: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a window [row, ...] and its target for one epoch. `rng` depends only on seed, epoch and window."""
        ...


@runtime_checkable
class Mixing(Protocol):
    """A task that mixes each training window with another one."""

    def mix(
        self, x: Tensor, target: Tensor, x2: Tensor, target2: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return a window and its target, mixed with those of a window that was drawn from the global batch."""
        ...


@runtime_checkable
class BatchTransforming(Protocol):
    """A task whose change needs a whole batch, of which each worker has a part: results depend on the workers."""

    def transform_batch(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the windows [batch, row, ...] and targets of this worker's part of a batch."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A task with a schedule of its own."""

    def lr_factor(self, step: int, steps: int) -> float:
        """Return what the learning rates are multiplied by at a step, counted from 0, of `steps`."""
        ...


@runtime_checkable
class Generative(Protocol):
    """A task whose model can write."""

    def sample(self, model: nn.Module, dataset: Dataset) -> str:
        """Return a text that the trained model on the CPU writes, for a reader."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A task whose model continues a text."""

    def generate(self, model: nn.Module, dataset: Dataset, start: bytes, length: int, seed: int) -> bytes:
        """Return the bytes of `length` tokens after `start`, each drawn with the probability that the model gives."""
        ...


@runtime_checkable
class Publishing(Protocol):
    """A task whose model other programs can read."""

    def publish(self, model: nn.Module, dataset: Dataset, folder: Path) -> None:
        """Write the trained model into a folder, in its ecosystem's format; nothing for a model without one."""
        ...


@runtime_checkable
class Classifying(Protocol):
    """A task of images, each with a class."""

    def probabilities(self, output: np.ndarray) -> np.ndarray:
        """Return probabilities [window, class] from outputs [window, class]."""
        ...


@runtime_checkable
class Forecasting(Protocol):
    """A task of prices: what its model says of the days after the last price of a ticker."""

    unit: ClassVar[str]
    """The quantity of a forecast, such as `log return`."""

    def encode(self, fields: Mapping[str, pd.Series], dataset: Dataset) -> np.ndarray:
        """Return X [1, window, feature] of the last days of these prices by name (open, high, low, close, volume)."""
        ...

    def forecast(self, output: np.ndarray, dataset: Dataset) -> np.ndarray:
        """Return forecasts [window] from outputs [window, number], in `unit`."""
        ...

    def naive(self, close: pd.Series, dataset: Dataset) -> dict[str, float]:
        """Return the naive forecasts for the days after these closing prices, by name, in `unit`."""
        ...


@runtime_checkable
class Relative(Protocol):
    """A task of prices whose outputs are relative to a number that the prices of a request give."""

    def answer(
        self, output: np.ndarray, fields: Mapping[str, pd.Series], dataset: Dataset
    ) -> tuple[float, dict[str, float]]:
        """Return the forecast after these prices from the model's output [1, number], and the naive forecasts."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A task of prices that forecasts tickers from the prices of all of them."""

    def encode_tickers(self, prices: Prices, tickers: Sequence[str], dataset: Dataset) -> np.ndarray:
        """Return X [ticker, window, feature] of the last days of these tickers."""
        ...


@runtime_checkable
class Detailed(Protocol):
    """A task whose test has details: tickers, years, portfolios."""

    def break_down(self, output: np.ndarray, dataset: Dataset, scores: Metrics) -> Breakdown | None:
        """Return the details of what is kept [window, number] of the test, which has these scores.

        None where dates are not known.
        """
        ...


@runtime_checkable
class Signed(Protocol):
    """A task of prices, which may be trained on the sign of its target."""

    direction: ClassVar[bool]
    """Whether it is: targets are 0 and 1."""


@runtime_checkable
class Traded(Protocol):
    """A task whose outputs can be traded."""

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Return the Sharpe ratio per trade, not annualised, of trading `output` in excess of always being long.

        `output` is what is kept [window, number]. None if nothing can be traded. A search asks for it once per config,
        so it has to take only milliseconds.
        """
        ...
