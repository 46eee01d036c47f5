"""Walk-forward: the same folds one after another and on Ray, kept when they end, and none lost with another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data import folds as data
from sp500.data.features import features
from sp500.data.folds import Folds
from sp500.data.prices import Prices
from sp500.errors import ConfigError, SP500Error
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.studies import walk_forward_folds
from sp500.studies.walk_forward_folds import Keep

Row = dict[str, Any]
Walked = Callable[..., RunRecord]
COSTS = {"seconds", "peak_worker_bytes"}


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig(
        data=DataConfig(window=10),
        model=ModelConfig(hidden=8, layers=1, dropout=0.3),
        train=TrainConfig(epochs=2),
    )


@pytest.fixture(scope="module")
def prices(bundled_stocks: Prices) -> Prices:
    return Prices({"close": bundled_stocks.close.loc["2016":"2020", ["AAPL", "KO"]]}, "test")


@pytest.fixture(scope="module")
def folds(config: RunConfig, prices: Prices) -> Folds:
    return data.cut(prices, features(prices), config.data, folds=3, test_days=100)


@pytest.fixture(scope="module")
def whole(config: RunConfig, folds: Folds, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """All folds, one after another in this process."""
    with RunStore(tmp_path_factory.mktemp("runs")).open("whole") as run:
        return walk_forward_folds.record(config, run, folds)


@pytest.fixture
def walked(config: RunConfig, folds: Folds, tmp_path: Path) -> Walked:
    def walk(
        name: str,
        folds: Folds = folds,
        *,
        at_once: int = 0,
        on_row: Keep | None = None,
        **train: Any,
    ) -> RunRecord:
        settings = config.train.model_copy(update=train)
        wanted = config.model_copy(update={"num_workers": at_once, "train": settings})
        with RunStore(tmp_path).open(name, resume=True) as run:
            return walk_forward_folds.record(wanted, run, folds, on_row)

    return walk


def numbers(record: RunRecord) -> list[Row]:
    assert record.folds is not None
    return [{key: value for key, value in row.items() if key not in COSTS} for row in record.folds]


def broken(folds: Folds, number: int) -> Folds:
    """Folds of which one has no dates to train on."""
    cut = folds.cuts[number - 1]
    cuts = list(folds.cuts)
    cuts[number - 1] = replace(cut, train=(cut.train[0], cut.train[0]))
    return replace(folds, cuts=tuple(cuts))


def deadly(folds: Folds, number: int) -> Folds:
    """Folds of which one ends the process that trains it."""

    # A class of a function is sent to Ray's workers whole; they cannot import a test.
    class Deadly(Folds):
        def dataset(self, wanted: int, dtype: str, **options: Any) -> Any:
            if wanted == number:
                os._exit(1)
            return super().dataset(wanted, dtype, **options)

    return Deadly(**vars(folds))


def test_folds_on_ray_are_the_same_to_the_last_bit(ray_cluster, walked, whole):
    on_ray = walked("ray", at_once=2)
    assert numbers(on_ray) == numbers(whole)
    assert on_ray.metrics == whole.metrics
    assert (whole.arm, whole.num_workers, on_ray.arm, on_ray.num_workers) == ("solo", 0, "ray", 2)
    assert [row["status"] for row in numbers(whole)] == ["ok"] * 3


def test_row_tells_dates_windows_and_scores(whole, folds):
    for row, cut in zip(whole.folds or (), folds.cuts, strict=True):
        assert row["splits"]["test"] == [str(day) for day in cut.test]
        assert row["windows"]["test"] == 200
        assert 1 <= row["best_epoch"] <= row["epochs"] == 2
        assert set(row["naive"]) == {"zero", "mean", "previous"}
        best = min(test["mse"] for test in row["naive"].values())
        assert row["improvement"]["value"] == pytest.approx(1 - row["test"]["mse"] / best)
        assert row["seconds"] > 0
    assert whole.samples == sum(row["windows"]["train"] * 2 for row in whole.folds or ())


def test_summary_is_mean_deviation_and_count_over_folds(whole):
    rows, metrics = numbers(whole), whole.metrics
    errors = [row["test"]["mse"] for row in rows]
    assert metrics["test"]["mse"] == pytest.approx(
        {"mean": np.mean(errors), "deviation": np.std(errors, ddof=1), "count": 3}
    )
    naive = [row["naive"]["zero"]["mse"] for row in rows]
    assert metrics["naive"]["zero"]["mse"]["mean"] == pytest.approx(np.mean(naive))
    gains = [row["improvement"]["value"] for row in rows]
    assert metrics["improvement"]["deviation"] == pytest.approx(np.std(gains, ddof=1))
    assert metrics["better"] == sum(np.array(gains) > 0)
    assert (metrics["folds"], metrics["failed"]) == (3, 0)


@pytest.mark.parametrize("at_once", [0, 2])
def test_failing_fold_says_why_and_loses_no_other(ray_cluster, walked, folds, whole, at_once):
    record = walked("broken", broken(folds, 2), at_once=at_once)
    assert [row["status"] for row in numbers(record)] == ["ok", "failed", "ok"]
    assert "too_short: no ticker has data.window" in numbers(record)[1]["reason"]
    assert numbers(record)[::2] == numbers(whole)[::2]
    assert (record.metrics["failed"], record.metrics["test"]["mse"]["count"]) == (1, 2)


def test_killed_worker_of_ray_is_one_failed_fold(ray_cluster, walked, folds, whole):
    record = walked("deadly", deadly(folds, 1), at_once=2)
    assert [row["status"] for row in numbers(record)] == ["failed", "ok", "ok"]
    assert "WorkerCrashedError" in numbers(record)[0]["reason"]
    assert numbers(record)[0]["splits"] == numbers(whole)[0]["splits"]


def test_all_folds_failing_is_an_error_with_the_reasons(walked):
    with pytest.raises(SP500Error, match=r"all 3 folds failed:(.|\n)*diverged"):
        walked("none", lr=1e30, clip=0.0)


def test_resumed_run_trains_only_missing_and_failed_folds(walked, folds, whole, tmp_path):
    walked("cut", broken(folds, 3))
    path = tmp_path / "cut" / "folds.jsonl"
    first, second, failed = path.read_text().splitlines()
    path.write_text("\n".join([second, failed, first[:100]]))  # killed while it wrote
    seen: list[Row] = []
    record = walked("cut", on_row=seen.append)
    assert [row["fold"] for row in seen] == [2, 1, 3]
    assert seen[0] == {key: value for key, value in json.loads(second).items() if key not in {"data", "sha256"}}
    assert numbers(record) == numbers(whole)
    assert path.read_text().count("\n") == 4


def test_folds_on_other_prices_are_not_mixed(walked, folds, prices):
    walked("mixed")
    other = replace(folds, prices=Prices({"close": prices.close * 2}, "test"))
    with pytest.raises(ConfigError, match="other prices"):
        walked("mixed", other)


def test_damaged_rows_are_told_by_their_file(walked, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "folds.jsonl").write_text("[1]\n")
    with pytest.raises(ConfigError, match=r"folds\.jsonl, line 1 is damaged"):
        walked("damaged")
