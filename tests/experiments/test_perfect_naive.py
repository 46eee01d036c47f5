"""A naive forecast that is never wrong: neither the run nor the report of its folder may fail."""

import json

import numpy as np
import pytest


@pytest.mark.parametrize("task", ["direction", "returns"])
def test_naive_forecast_without_an_error_is_reported_without_an_improvement(forked, tmp_path, task):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((120, 5, 3)).astype(np.float32)
    train = (x[:100, -1, 0] > -1).astype(np.int64) if task == "direction" else generator.standard_normal(100)
    test = np.ones(20, train.dtype) if task == "direction" else np.zeros(20)
    np.savez(tmp_path / "arrays.npz", X_train=x[:100], y_train=train, X_test=x[100:], y_test=test)
    runs = ("--runs-dir", tmp_path / "runs")
    trained = forked("train", *runs, "--name", "one", "--data.npz-path", tmp_path / "arrays.npz", "--train.epochs", 2)
    assert trained.returncode == 0, trained.stderr
    assert "is never wrong" in trained.stdout
    record = json.loads((tmp_path / "runs" / "one" / "record.json").read_text())
    assert record["config"]["task"] == task
    assert record["metrics"]["test"]["improvement"]["value"] is None
    compared = forked("compare", *runs)
    assert compared.returncode == 0, compared.stderr
    assert "is never wrong" in compared.stdout
    assert "without intervals" not in compared.stdout
