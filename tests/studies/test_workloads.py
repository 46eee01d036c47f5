"""Images and language through the studies: their defaults, a run, a search, copies of growing size."""

from __future__ import annotations

from typing import Any

import forks
import pandas as pd
import pytest
from PIL import Image

import sp500
from sp500.commands.experiments.train import Train
from sp500.config import kinds
from sp500.console import entry
from sp500.data.images import dataset as images
from sp500.errors import ConfigError
from sp500.machine import memory
from sp500.runs.store import RunStore

SMALL: dict[str, dict[str, Any]] = {
    "images": {"model": {"hidden": 8, "layers": 1}, "train": {"epochs": 2}},
    "language": {"text": {"max_bytes": 20_000}, "model": {"hidden": 16, "layers": 1}, "train": {"epochs": 1}},
}
TASKS = pytest.mark.parametrize("task", list(SMALL))


@TASKS
def test_flags_and_files_of_a_task_have_its_defaults_under_what_is_given(task, tmp_path):
    expected = kinds.tasks()[task].defaults
    file = tmp_path / "a.yaml"
    file.write_text(f"task: {task}\ntrain: {{epochs: 7}}\n")
    for words in (
        ["--task", task, "--train.epochs", "7"],
        [f"--task={task}", "--train.epochs", "7"],
        ["--config", str(file)],
    ):
        config = entry.parse(Train, words)
        assert (config.task, config.train.epochs) == (task, 7)
        assert config.model.kind == expected["model"]["kind"]
        assert (config.train.lr, config.train.batch_size) == (expected["train"]["lr"], expected["train"]["batch_size"])
    assert entry.parse(Train, ["--task", task, "--train.lr", "0.5"]).train.lr == 0.5
    assert entry.parse(Train, []).model.kind == "mlp"


@TASKS
def test_run_of_a_task_leaves_a_record_and_predictions(task, tmp_path):
    record = sp500.train(task=task, runs_dir=tmp_path, name="one", **SMALL[task])
    assert record.config["model"]["kind"] == kinds.tasks()[task].defaults["model"]["kind"]
    assert record.metrics["test"]["improvement"]["over"] in record.metrics["naive"]
    rows = pd.read_parquet(tmp_path / "one" / "predictions.parquet")
    assert len(rows) == record.metrics["test"]["samples"] == record.data["windows"]["test"]
    again = sp500.train(task=task, runs_dir=tmp_path, name="two", **SMALL[task])
    assert (again.fingerprint, again.metrics) == (record.fingerprint, record.metrics)


@TASKS
def test_search_of_a_task_trains_each_config_by_itself(task, tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("model.hidden: [8, 16]\ntrain.lr: [0.001, 0.01]\n")
    record = sp500.search(task=task, space=str(space), mode="packed", runs_dir=tmp_path, name="s", **SMALL[task])
    assert record.search is not None
    assert (record.search["configs"], record.search["failed"]) == (4, 0)
    lines = (tmp_path / "s" / "trials.jsonl").read_text().splitlines()
    assert [line for line in lines if '"pack":1' not in line.replace(" ", "")] == []
    assert RunStore(tmp_path).record("s") == record.record


@TASKS
def test_arms_of_a_scale_run_see_the_same_copies(task, tmp_path, monkeypatch):
    # Each arm in a process of its own, but one that need not import torch first. tests/experiments has fresh ones.
    monkeypatch.setattr(memory.multiprocessing, "get_context", lambda method: forks.CONTEXT)
    settings = {**SMALL[task], "train": {"epochs": 2, "batch_size": 10**6, "dtype": "float64"}}
    arms = ("in_memory", "streaming")
    record = sp500.scale(task=task, multipliers=(1, 3), arms=arms, runs_dir=tmp_path, name="a", **settings)
    assert record.scale is not None
    rows = {(row["multiplier"], row["arm"]): row for row in record.scale}
    assert {row["status"] for row in record.scale} == {"ok"}
    for size in (1, 3):
        # One step for each pass: all windows, in whatever order.
        assert rows[size, "streaming"]["windows"] == size * (rows[1, "in_memory"]["windows"] or 0)
        errors = [rows[size, arm]["test_error"] for arm in arms]
        assert errors[0] == pytest.approx(errors[1], abs=1e-9)
    assert rows[1, "streaming"]["metric"] == {"images": "error_rate", "language": "bits_per_byte"}[task]


@TASKS
def test_folds_need_dates(task, tmp_path):
    with pytest.raises(ConfigError, match="cut by date"):
        sp500.walk_forward(task=task, runs_dir=tmp_path, name="b", **SMALL[task])


def test_search_needs_a_validation_part_of_either_origin(tmp_path):
    digits = images.digits().train
    for part, rows in (("train", range(200)), ("valid", range(200, 300)), ("test", range(300, 400))):
        for row in rows:
            place = tmp_path / part / str(digits.labels[row])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.pixels[row, ..., 0]).save(place / f"{row}.png")
    space = tmp_path / "space.yaml"
    space.write_text("model.hidden: [8]\n")
    settings: dict[str, Any] = {"task": "images", "space": str(space), "mode": "packed", "runs_dir": tmp_path / "runs"}
    settings |= {**SMALL["images"], "data": {"valid_from_train": 0.0}}
    found = sp500.search(name="own", images={"source": str(tmp_path)}, **settings)
    assert found.metrics["valid"]["samples"] == 100
    with pytest.raises(ConfigError, match="validation split"):
        sp500.search(name="none", **settings)
