"""What the loop needs to know of a forecasting problem."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.runs.results import Metrics


@runtime_checkable
class Task(Protocol):
    """A problem: its data, its loss, how its forecasts are judged. Plain data, so that it travels to workers."""

    @property
    def made_by_workers(self) -> bool:
        """Whether every worker can make the data itself; otherwise the driver prepares it once and shares it."""
        ...

    def prepare(self, config: RunConfig) -> Dataset:
        """The dataset. Raises DataError."""
        ...

    def num_outputs(self, dataset: Dataset) -> int:
        """Numbers that the model gives per window."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over the batch of the loss of output [batch, output] against target [batch]."""
        ...

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """`valid`, `test` and `naive` metrics of the model's outputs [window, output] per split."""
        ...

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """One row per window: what was forecast and what came."""
        ...

    def excess_sharpe(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> float | None:
        """Sharpe ratio per trade, not annualised, of trading the model's output [window, output] in excess of always
        being long. None where nothing can be traded. A search asks for it once per config, so it takes milliseconds.
        """
        ...
