"""Several seeds, and training anew on validation dates: each equals what separate, plain runs give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.studies import train
from sp500.tasks import catalog
from sp500.training.loop import FitResult, fit
from sp500.training.worker import SoloWorker


def settings(**train: object) -> RunConfig:
    return RunConfig(
        data=DataConfig(window=1),
        model=ModelConfig(hidden=16),
        train=TrainConfig(**{"epochs": 3, "batch_size": 300, "dtype": "float64", **train}),
    )


def launched(config: RunConfig, folder: Path, *, resume: bool = False, **options: int) -> RunRecord:
    with RunStore(folder).open("run", resume=resume) as run:
        return train.train(config, run, **options)


def fitted(config: RunConfig) -> tuple[FitResult, float]:
    """A plain fit, and what its outputs are in units of."""
    task = catalog.task(config)
    dataset = task.prepare(config)
    return fit(task, dataset, config, SoloWorker(torch.device("cpu"))), dataset.target_scale


def test_seeds_give_the_metrics_of_separate_runs(tmp_path):
    together = launched(settings(seed=4), tmp_path / "together", seeds=3)
    assert together.seeds is not None
    for row in together.seeds:
        alone = launched(settings(seed=row["seed"]), tmp_path / str(row["seed"]))
        assert (row["test"], row["best_epoch"]) == (alone.metrics["test"], alone.best_epoch)
        assert alone.seeds is None
    assert [row["seed"] for row in together.seeds] == [4, 5, 6]
    assert together.metrics["test"] == together.seeds[0]["test"]


def test_resumed_run_of_several_seeds_trains_no_epoch_again(tmp_path):
    first = launched(settings(), tmp_path, seeds=2)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("run/seed-1/checkpoints/epoch-*")}
    again = launched(settings(), tmp_path, resume=True, seeds=2)
    assert times
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert again.seeds == first.seeds


def test_refit_equals_a_plain_fit_on_all_dates_before_the_test(tmp_path):
    record = launched(settings(refit=True), tmp_path)
    chosen, _ = fitted(settings())
    assert record.best_epoch == chosen.best_epoch > 0
    whole = settings(epochs=chosen.best_epoch, early_stop_patience=0)
    whole = whole.model_copy(update={"data": DataConfig(window=1, valid_from_train=0.0)})
    expected, scale = fitted(whole)
    forecast = pd.read_parquet(tmp_path / "run" / "predictions.parquet")["forecast"]
    np.testing.assert_allclose(forecast, expected.outputs["test"][:, 0] * scale, rtol=1e-9)


def test_refit_trains_up_to_the_last_validation_date_and_keeps_the_gap(tmp_path):
    record = launched(settings(refit=True), tmp_path)
    assert record.refit is not None
    before, after = record.data["splits"], record.refit["splits"]
    assert (after["train"], after["test"]) == ([before["train"][0], before["valid"][1]], before["test"])
    assert record.refit["windows"] > record.data["windows"]["train"]
    assert record.refit["epochs"] == record.best_epoch


def test_refit_leaves_the_judged_model_where_a_run_keeps_its_model(tmp_path):
    launched(settings(refit=True), tmp_path / "refit")
    launched(settings(), tmp_path / "plain")
    names = {path.name for path in (tmp_path / "refit" / "run" / "checkpoints").iterdir()}
    assert {"last", "best"} <= names
    found = [(tmp_path / name / "run" / "checkpoints" / "best" / "model.safetensors") for name in ("refit", "plain")]
    assert found[0].read_bytes() != found[1].read_bytes()


@pytest.mark.parametrize("wrong", [{"data": {"valid_from_train": 0}}, {"task": "synthetic"}])
def test_refit_without_validation_dates_is_refused(wrong):
    with pytest.raises(ValidationError, match=r"train\.refit"):
        RunConfig.model_validate({"train": {"refit": True}, **wrong})
