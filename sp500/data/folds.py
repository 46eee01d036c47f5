"""Walk-forward folds: prices and features computed once, and the dates at which every fold is cut.

The idea is that a fold is a split like any other, so the pipeline makes its windows. What the pipeline fits (scaling
of the features and of the targets) is fitted again on the fold's own training dates. The price is that windows are
made once per fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp500.config import DataConfig
from sp500.data import pipeline
from sp500.data.columns import Hooks
from sp500.data.features import Features
from sp500.data.prices import Prices
from sp500.data.splits import Split, walk_forward
from sp500.data.windows import Dataset
from sp500.runs.results import DataCard, FoldDates


@dataclass(frozen=True)
class Folds:
    """The data from which every fold is made, a few megabytes. Folds are counted from 1.

    `blind`: whether the config was chosen without the fold's test dates; None if that is not known.
    """

    config: DataConfig
    prices: Prices
    table: Features
    cuts: tuple[Split, ...]
    blind: tuple[bool | None, ...]

    def __len__(self) -> int:
        return len(self.cuts)

    def dates(self, number: int) -> FoldDates:
        """Return the fold's number, first and last date of its parts, and whether it is blind."""
        cut = self.cuts[number - 1]
        spans = {"train": cut.train, "valid": cut.valid, "test": cut.test}
        splits = {name: [str(day) for day in span] for name, span in spans.items() if span}
        return {"fold": number, "splits": splits, "blind": self.blind[number - 1]}

    def dataset(
        self, number: int, dtype: str, *, direction: bool, refit: bool = False, hooks: Hooks | None = None
    ) -> Dataset:
        """Return the fold's windows, for a `refit` with the validation dates among the training dates.

        Raises DataError when a part has none.
        """
        cut = self.cuts[number - 1]
        if refit and cut.valid:
            cut = Split((cut.train[0], cut.valid[1]), None, cut.test)
        parts = pipeline.fit(self.prices, self.table, self.config, direction=direction, cut=cut, hooks=hooks)
        return parts.dataset(dtype)

    @property
    def card(self) -> DataCard:
        """The source of the prices, for the record. It has no dates of splits: each fold's row has its own."""
        card = pipeline.describe(self.prices, self.table, self.cuts[-1], self.config.horizon)
        del card["splits"]
        return card


def cut(
    prices: Prices,
    table: Features,
    config: DataConfig,
    *,
    folds: int,
    test_days: int,
    chosen_until: str | None = None,
) -> Folds:
    """Return the dates of the folds; the last test ends with the last date whose return is known.

    `chosen_until` is the last validation date of the search that chose the config. Raises DataError for too few dates.
    """
    dates = np.unique(np.concatenate([series.dates[np.isfinite(series.y)] for series in table.series]))
    cuts = walk_forward(
        dates, folds=folds, test_days=test_days, valid_from_train=config.valid_from_train, gap=config.purge
    )
    blind: list[bool | None] = [None] * folds
    if chosen_until:
        # The return that the choice saw last was known `horizon` sessions after its date.
        between = [dates[(dates > np.datetime64(chosen_until)) & (dates <= fold.test[0])] for fold in cuts]
        blind = [len(sessions) >= config.horizon for sessions in between]
    return Folds(config, prices, table, tuple(cuts), tuple(blind))
