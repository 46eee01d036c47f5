"""Runs of every kind, made once by the scripts that users start."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from tracking_runs import SMALL, cut, run, sync


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ok, failed, killed, stopped, resumed twice, a search of 18, and a walk-forward run. No test changes them."""
    folder = tmp_path_factory.mktemp("made") / "runs"
    run("train", folder, "ok", *SMALL)
    run("train", folder, "failed", *SMALL, "--train.lr", "1e30", code=1)
    cut(folder, "killed", 3)
    cut(folder, "stopped", 3, end=signal.SIGTERM)
    cut(folder, "resumed", 3)
    cut(folder, "resumed", 6, "--resume")
    run("train", folder, "resumed", "--resume")
    run("tune", folder, "search", "--mode", "packed", "--train.epochs", "1")
    run("walk_forward", folder, "walk", "--train.epochs", "1", "--folds", "3", "--model.kind", "linear")
    return folder


@pytest.fixture
def runs(made_runs: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(made_runs, tmp_path / "runs", symlinks=True))


@pytest.fixture
def few_runs(made_runs: Path, tmp_path: Path) -> Path:
    """Copies of three of them: ok, killed, a search."""
    for name in ("ok", "killed", "search"):
        shutil.copytree(made_runs / name, tmp_path / "runs" / name, symlinks=True)
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database of MLflow that has another experiment."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "runs").mkdir()
    sync(folder / "runs", folder / "store", "--experiment", "other")
    return folder / "store"


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    """A copy: MLflow takes half a second to make its tables."""
    return Path(shutil.copytree(empty_store, tmp_path / "store"))
