"""The public functions: the same runs as the scripts make."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forks
import pytest

import sp500
from sp500.errors import ConfigError
from sp500.runs.store import RunStore

QUICK: dict[str, Any] = {"data": {"start": "2012-01-01"}, "train": {"epochs": 2, "device": "cpu"}}


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, sp500; print({'torch', 'ray', 'pandas', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_trained_run_is_the_script_s(tmp_path: Path) -> None:
    record = sp500.train(model={"kind": "linear"}, runs_dir=tmp_path / "a", name="one", **QUICK)
    script = ["experiments/train.py", "--model.kind", "linear", "--data.start", "2012-01-01"]
    flags = ["--train.epochs", "2", "--train.device", "cpu", "--runs-dir", str(tmp_path / "b"), "--name", "one"]
    done = forks.run([*script, *flags], cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    other = RunStore(tmp_path / "b").record("one")
    assert other is not None
    assert (record.fingerprint, record.metrics) == (other.fingerprint, other.metrics)
    assert sp500.train(model={"kind": "linear"}, runs_dir=tmp_path / "a", name="one", resume=True, **QUICK) == record


def test_best_of_a_search_is_re_trained_over_the_years(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("model.hidden: [4, 8]\n")
    found = sp500.search(space=str(space), mode="sequential", runs_dir=tmp_path, name="search", **QUICK)
    assert found.search is not None
    walked = sp500.walk_forward(best_of="search", folds=2, test_days=60, runs_dir=tmp_path, name="folds")
    assert walked.folds is not None
    assert len(walked.folds) == 2
    assert walked.config["model"]["hidden"] == found.search["best"]["overrides"]["model.hidden"]
    assert walked.config["train"]["epochs"] == 2


def test_scale_has_a_row_per_arm(tmp_path: Path) -> None:
    settings = {**QUICK, "data": {"tickers": ("AAPL", "KO"), "start": "2015-01-01"}}
    record = sp500.scale(multipliers=(1,), arms=("streaming",), runs_dir=tmp_path, name="scale", **settings)
    assert record.scale is not None
    assert [(row["arm"], row["status"]) for row in record.scale] == [("streaming", "ok")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modle": {}}, r"train settings: unknown key modle; did you mean model\?"),
        ({"train": {"epochs": 0}}, r"train\.epochs"),
        ({"train": {"ephocs": 3}}, r"unknown key train\.ephocs; did you mean train\.epochs\?"),
        ({"best_of": "nothing"}, "unknown key best_of"),
        ({"io": {"run_name": "a"}}, "`name`"),
    ],
)
def test_wrong_setting_is_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sp500.train(runs_dir=tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_all_modes_of_a_search_are_the_scripts_to_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mode all"):
        sp500.search(mode="all", runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_limit_by_a_signal_is_refused_in_a_thread_before_any_trial(tmp_path: Path) -> None:
    limited = {"space": "grid18", "mode": "sequential", "trial_timeout": 60.0, "runs_dir": tmp_path, "name": "limited"}
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match=r"trial_timeout 60"):
        pool.submit(sp500.search, **limited, **QUICK).result()
    assert not (tmp_path / "limited" / "trials.jsonl").exists()
