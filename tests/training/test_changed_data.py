"""A run that is resumed on other prices than it began with would end in numbers that belong to neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from sp500.config import RunConfig
from sp500.data.prices import Prices
from sp500.errors import SP500Error
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.store import RunStore
from sp500.studies import train

Csv = Callable[..., str]


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


def stop(epoch: EpochMetrics) -> None:
    if epoch.epoch == 2:
        raise Interrupted


def trained(source: str, folder: Path, on_epoch: Callable[[EpochMetrics], None] | None = None) -> RunRecord:
    config = RunConfig.model_validate(
        {
            "data": {"source": source, "window": 5},
            "model": {"kind": "linear"},
            "train": {"epochs": 4},
        }
    )
    with RunStore(folder).open("run", resume=True) as run:
        return train.train(config, run, on_epoch=on_epoch)


@pytest.fixture
def close(bundled: Prices) -> pd.DataFrame:
    return bundled.close.loc["2014":"2019"]


def test_run_is_resumed_on_the_same_prices_read_from_another_layout(csv, close, tmp_path):
    whole = trained(csv(close), tmp_path / "whole")
    with pytest.raises(Interrupted):
        trained(csv(close), tmp_path / "resumed", stop)
    rows = close.reset_index(names="date").melt("date", var_name="ticker", value_name="close")
    assert trained(csv(rows), tmp_path / "resumed").metrics == whole.metrics


@pytest.mark.parametrize(
    "change",
    [
        lambda close: close.iloc[:-30],
        lambda close: close.round(0),
        lambda close: close.rename(columns={"^GSPC": "SPX"}),
    ],
    ids=["days", "values", "name"],
)
def test_run_is_not_resumed_on_other_prices(csv, close, tmp_path, change):
    with pytest.raises(Interrupted):
        trained(csv(close), tmp_path / "runs", stop)
    source = csv(change(close))
    with pytest.raises(SP500Error, match=r"data|prices"):
        trained(source, tmp_path / "runs")
