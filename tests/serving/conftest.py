"""Runs that the tests of this folder serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import sp500

WINDOW = 10
STOCKS: dict[str, Any] = {"tickers": ["AAPL", "KO"], "start": "2019-01-01", "window": WINDOW}


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 8 x 8 pixels: few, since the naive classifiers of all 1,797 take seconds at each judgement."""
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    bundle = load_digits()
    np.savez(path, x_train=bundle.images[:300].astype(np.uint8), y_train=bundle.target[:300])
    return path


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> Path:
    """Two runs that take the same requests, one of another window, and one each of other tasks. Nobody changes them."""
    folder = tmp_path_factory.mktemp("serving") / "runs"
    quick: dict[str, Any] = {"train": {"epochs": 2}, "runs_dir": folder}
    sp500.train(name="returns", data=STOCKS, **quick)
    sp500.train(name="other", data=STOCKS, model={"hidden": 16}, **quick)
    sp500.train(name="wider", data={**STOCKS, "window": 12}, **quick)
    sp500.train(name="direction", task="direction", data=STOCKS, **quick)
    sp500.train(name="ridge", data=STOCKS, model={"kind": "ridge"}, runs_dir=folder)
    trees: dict[str, Any] = {"kind": "hist_gbm", "max_iter": 5, "n_iter_no_change": 0}
    sp500.train(name="trees", data=STOCKS, model=trees, runs_dir=folder)
    sp500.train(name="synthetic", task="synthetic", synthetic={"samples": 500}, **quick)
    images = {"source": str(few_digits)}
    sp500.train(name="images", task="images", images=images, model={"hidden": 8, "layers": 2}, **quick)
    text: dict[str, Any] = {"source": "docs", "max_bytes": 30_000, "context": 16}
    sp500.train(name="language", task="language", text=text, model={"hidden": 16, "layers": 1}, **quick)
    return folder
