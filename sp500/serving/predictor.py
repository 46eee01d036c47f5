"""A trained run answers again, from only its folder: no Ray, no server, no training data."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from sp500.config import RunConfig
from sp500.data.sources import load
from sp500.data.sources.files import to_rows
from sp500.data.windows import Windows
from sp500.errors import CheckpointError, ConfigError, DataError
from sp500.runs.results import Metrics
from sp500.runs.store import Run
from sp500.tasks import catalog
from sp500.training import evaluation, recipe, refit
from sp500.training.task import Generative
from sp500.training.worker import SoloWorker, device

TOLERANCE = 1e-5
"""Relative gap to the stored answer that other processors may leave."""
NOT_SHOWN = {"naive", "repairs", "days", "traces"}


class Predictor:
    """The best model of the run in `folder`.

    Raises ConfigError for a folder without a run that ended well, or with Python that was never given here (unless
    `trust_source`); CheckpointError if its files were changed, or if it does not answer as it did.
    """

    def __init__(self, folder: str | Path, *, trust_source: bool = False) -> None:
        self.folder = Path(folder).expanduser().absolute()
        record = Run(self.folder).record()
        if record is None or record.status != "ok" or record.best_epoch is None:
            raise ConfigError(f"{self.folder}: holds no run of train or tune that ended well")
        best = record.best_config(self.folder).keep_sources(self.folder, trusted=trust_source)
        self.config: RunConfig = catalog.resolve(best)
        self.task = catalog.task(self.config)
        self.recipe, self.model = recipe.read(self.folder, self.task, self.config)
        self._refit_epochs = record.refit["epochs"] if record.refit else 0
        self.check()

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs for windows x [batch, window, *row] in the recipe's shape and number type."""
        expected = (self.recipe.window, *self.recipe.row)
        if x.shape[1:] != expected or str(x.dtype) != self.recipe.row_dtype:
            raise ConfigError(
                f"x is {x.dtype} {list(x.shape)}: expected {self.recipe.row_dtype} [batch, "
                f"{', '.join(map(str, expected))}]"
            )
        return recipe.answer(self.model, x)

    def forecast(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a row per ticker of a table of prices: the forecast made at its last close, and the naive ones.

        The table has a form that `source` accepts: dates as index and a column per ticker, or date, ticker, close.
        Its prices are checked as those of a training. Raises DataError for prices that are wrong or too few.
        """
        from sp500.serving.requests import BadRequest, forecast_known, list_own_columns

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.parquet")
            to_rows(table).to_parquet(path)
            given = {"source": str(path), "tickers": (), "start": None, "end": None}
            prices = load(self.config.data.model_copy(update=given), columns=list_own_columns(self))
        try:
            values = forecast_known(self, prices, prices.tickers)
        except BadRequest as error:
            raise DataError(str(error)) from None
        rows = [{**value.model_dump(exclude=NOT_SHOWN), **value.naive} for value in values]
        return pd.DataFrame(rows).set_index("ticker")

    def check(self) -> None:
        """Raise CheckpointError unless the stored test window gets the stored answer."""
        expected, output = self.recipe.test_output.numbers, self.outputs(self.recipe.test_input.numbers)
        if not np.allclose(output, expected, rtol=TOLERANCE, atol=TOLERANCE * float(np.abs(expected).max())):
            raise CheckpointError(f"{self.folder / recipe.FILE}: the model answers {output}, and answered {expected}")

    def judge(self) -> Metrics:
        """Compute the run's metrics again, from its data and this model. Raises DataError if the data is missing."""
        torch.set_num_threads(self.config.train.threads or torch.get_num_threads())
        dataset = self.task.prepare(self.config)
        if not self._refit_epochs:
            parts = {"valid": dataset.valid, "test": dataset.test}
            outputs = {name: self.predict(part) for name, part in parts.items() if part is not None}
            metrics = self.task.judge(outputs, dataset)
            if isinstance(self.task, Generative):
                metrics["test"]["sample"] = self.task.sample(self.model, dataset)
            return metrics
        assert dataset.valid is not None
        choice = self.read_chosen()
        whole = self.task.prepare(refit.settings(self.config, self._refit_epochs))
        test = refit.in_units_of(dataset, self.predict(whole.test), whole)
        return self.task.judge({"valid": self.predict(dataset.valid, choice), "test": test}, dataset)

    def read_chosen(self) -> nn.Module:
        """Return the model that has not seen the validation windows: of a run with train.refit not the one served."""
        if not self._refit_epochs:
            return self.model
        return recipe.read(self.folder, self.task, self.config, "checkpoints-choice").model

    def predict(self, windows: Windows, model: nn.Module | None = None) -> np.ndarray:
        """Return what the task keeps of the outputs for these windows [window, number], as training did."""
        worker = SoloWorker(device("cpu"))
        return evaluation.predict(self.task, model or self.model, windows, worker, self.config.batch_size)
