"""A run is judged again from its folder alone: the same metrics and predictions, and nothing that was changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import your_own

import sp500
from sp500 import Predictor
from sp500.config import DataConfig
from sp500.data.sources import load
from sp500.errors import CheckpointError, ConfigError, DataError
from sp500.plugins import admission
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.serving import requests

QUICK: dict[str, Any] = {"train": {"epochs": 2}}
STOCKS = {"tickers": ["AAPL", "KO"], "start": "2015-01-01", "window": 10}
RUNS: dict[str, dict[str, Any]] = {
    "returns": {"data": STOCKS, **QUICK},
    "returns in float64": {"data": STOCKS, "train": {"epochs": 2, "dtype": "float64"}, "model": {"kind": "lstm"}},
    "direction": {"task": "direction", "data": STOCKS, **QUICK},
    "refit": {"data": {"npz_path": "arrays.npz"}, "train": {"epochs": 4, "refit": True, "lr": 0.01}},
    "images": {"task": "images", "images": {"source": "digits.npz"}, "model": {"hidden": 8, "layers": 2}, **QUICK},
    "language": {"task": "language", "text": {"max_bytes": 30_000}, "model": {"hidden": 16, "layers": 1}, **QUICK},
    "synthetic": {"task": "synthetic", "synthetic": {"samples": 500}, **QUICK},
    "npz": {"data": {"npz_path": "arrays.npz"}, **QUICK},
    "your own": {"task": "biopsies.py:Biopsies", "model": {"kind": "biopsies.py:Residual"}, **QUICK},
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, few_digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.setattr(admission, "_given", set())
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)
    generator = np.random.default_rng(0)
    arrays = {f"X_{part}": generator.normal(size=(200, 5, 3)) for part in ("train", "test")}
    Path("digits.npz").symlink_to(few_digits)
    np.savez("arrays.npz", **arrays, **{name.replace("X", "y"): x.mean(axis=(1, 2)) for name, x in arrays.items()})


def trained(name: str = "one", **settings: Any) -> RunRecord:
    return sp500.train(name=name, **settings)


@pytest.mark.parametrize("kind", list(RUNS))
def test_run_is_judged_again_to_the_same_numbers(kind: str) -> None:
    record = trained(**RUNS[kind])
    assert kind != "refit" or (record.refit is not None and record.refit["epochs"] > 0)
    # Elsewhere, without the file that the task was given in.
    Path("runs").rename("elsewhere")
    Path("biopsies.py").unlink()
    predictor = Predictor("elsewhere/one")
    assert json.loads(json.dumps(predictor.judge())) == json.loads(record.model_dump_json())["metrics"]
    if kind != "refit":
        dataset = predictor.task.prepare(predictor.config)
        test = predictor.task.predictions(predictor.predict(dataset.test), dataset.test, dataset)
        test.to_parquet("again.parquet")
        kept = pd.read_parquet("elsewhere/one/predictions.parquet")
        pd.testing.assert_frame_equal(pd.read_parquet("again.parquet"), kept, check_exact=True)


def test_search_is_judged_by_its_chosen_config() -> None:
    Path("space.yaml").write_text("model.hidden: [8, 16]\n")
    record = sp500.search(name="one", space="space.yaml", data=STOCKS, **QUICK)
    assert Predictor("runs/one").judge() == record.metrics


def test_recipe_says_what_was_fitted() -> None:
    trained(**RUNS["returns"])
    recipe = json.loads(Path("runs/one/recipe.json").read_text())
    assert (recipe["window"], recipe["row_dtype"], recipe["state"]["horizon"]) == (10, "float32", 1)
    names = len(recipe["state"]["features"])
    assert recipe["row"] == [names]
    assert len(recipe["state"]["shift"]) == len(recipe["state"]["scale"]) == names
    assert recipe["target_scale"] == pytest.approx(0.016, abs=0.005)  # a daily return's standard deviation
    prices = subprocess.run(
        ["sha256sum", "runs/one/checkpoints/best/model.safetensors"], capture_output=True, text=True, check=True
    )
    assert prices.stdout.split()[0] == recipe["weights_sha256"]


def test_windows_of_another_shape_or_number_type_are_refused() -> None:
    trained(**RUNS["returns"])
    predictor = Predictor("runs/one")
    good = predictor.recipe.test_input.numbers
    assert predictor.outputs(np.repeat(good, 3, axis=0)).shape == (3, 1)
    for wrong in (good[:, :5], good.astype(np.float64), good[0]):
        with pytest.raises(ConfigError, match=r"expected float32 \[batch, 10, "):
            predictor.outputs(wrong)


def change_weights(run: Path) -> None:
    path = run / "checkpoints" / "best" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")


def change_state(run: Path) -> None:
    path = run / "recipe.json"
    path.write_text(path.read_text().replace('"horizon": 1', '"horizon": 2'))


def remove_recipe(run: Path) -> None:
    (run / "recipe.json").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_weights, "does not hold the weights of"),
        (change_state, "is not a recipe .*checksum"),
        (remove_recipe, r"recipe.json: cannot be read .*is the run trained\?"),
    ],
)
def test_run_that_was_changed_does_not_answer(damage: Any, said: str) -> None:
    trained(**RUNS["returns"])
    damage(Path("runs/one"))
    with pytest.raises(CheckpointError, match=said):
        Predictor("runs/one")


def test_folder_without_a_run_that_ended_well_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        Predictor("runs/none")
    record = trained(**RUNS["returns"])
    Run(Path("runs/one").absolute()).write_record(record.model_copy(update={"status": "failed"}))
    with pytest.raises(ConfigError, match="holds no run"):
        Predictor("runs/one")


def test_python_of_a_strangers_run_needs_a_flag() -> None:
    trained(**RUNS["your own"])
    admission.KNOWN.unlink()
    admission._given.clear()
    with pytest.raises(ConfigError, match="--trust-source"):
        Predictor("runs/one")
    assert Predictor("runs/one", trust_source=True).outputs(np.zeros((2, 1, 30), np.float32)).shape == (2, 2)


def test_state_that_is_not_plain_data_is_refused_by_name() -> None:
    text = Path("biopsies.py").read_text().replace("outputs=2)", "outputs=2, state={'scale': x})")
    Path("biopsies.py").write_text(text)
    with pytest.raises(ConfigError, match="state is not plain data"):
        trained(**RUNS["your own"])


def test_table_of_prices_is_forecast_as_a_request_is() -> None:
    trained(**RUNS["returns"])
    predictor, close = Predictor("runs/one"), load(DataConfig()).close["^GSPC"].tail(100)
    body = requests.Prices(ticker="A", dates=[day.date() for day in close.index], close=close.to_list())
    other = requests.forecast(predictor, body)
    (row,) = predictor.forecast(close.to_frame("A")).reset_index().to_dict("records")
    assert {key: row[key] for key in ("ticker", "as_of", "session", "forecast", "unit")} == other.model_dump(
        include={"ticker", "as_of", "session", "forecast", "unit"}
    )
    assert {name: row[name] for name in other.naive} == other.naive
    with pytest.raises(DataError, match="fewer than"):
        predictor.forecast(close.tail(10).to_frame("A"))


def test_predictor_needs_no_ray() -> None:
    trained(**RUNS["returns"])
    code = "import sys, sp500; sp500.Predictor('runs/one').judge(); print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
