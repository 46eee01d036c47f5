"""Studies in Python: classes and tables as settings, what a result shows, and the same in a real notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import sp500
from sp500.errors import ConfigError
from sp500.plugins.notebook import collect

CELLS = [
    "import numpy as np\nimport torch\nfrom torch import nn\nimport sp500",
    "WIDTH = 8\ndef width(factor):\n    return factor * WIDTH",
    "class Net(nn.Module):\n    def __init__(self, config, dataset):\n        super().__init__()\n"
    "        size = dataset.window * dataset.features\n"
    "        self.body = nn.Sequential(nn.Flatten(), nn.Linear(size, width(2)), nn.ReLU())\n"
    "        self.head = nn.Linear(width(2), 1)\n"
    "    def forward(self, x):\n        return self.head(self.body(x))\n",
    "class Calm(sp500.PriceTask):\n    def features(self, prices):\n"
    "        return {'move': np.log(prices.close).diff(), 'level': np.log(prices.close).diff().rolling(5).mean()}",
    "table = sp500_prices()",
    "r = sp500.train(task=Calm, model=Net, source=table, epochs=2, start='2015-01-01', name='one')\nr",
    "found = sp500.tune(task=Calm, model=Net, source=table, space={'train.lr': [0.001, 0.01]}, name='search')",
    "r.plot()",
    "r.history, r.predictions.head(2), found.trials",
    "forecast = r.predictor().forecast(table.tail(200))\nprint(list(forecast.index), forecast.forecast.isna().sum())",
    "from IPython.core.completer import provisionalcompleter\nwith provisionalcompleter():\n"
    "    tab = [[one.text for one in get_ipython().Completer.completions(text, len(text))] for text in "
    "('sp500.', 'sp500.train(epo')]\nprint(sorted(tab[0]) == sorted(sp500.__all__), tab[1])",
    "sp500.train(source='missing.csv', name='typo')",
    "sp500.train(source=table, start='2015-01-01', epochs=1, name='typo').seconds.total < 100",
]


def test_notebook_defines_classes_trains_searches_and_shows(tmp_path: Path, prices: pd.DataFrame) -> None:
    prices.to_parquet(tmp_path / "given.parquet")
    cells = [cell.replace("sp500_prices()", "__import__('pandas').read_parquet('given.parquet')") for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown: list[Any] = [cell.outputs for cell in notebook.cells]
    assert [output.output_type for output in shown[5]] == ["display_data", "execute_result"]
    assert shown[5][0].data["text/plain"].startswith("epoch 2 of at most 2, ")
    assert "text/html" in shown[5][1].data
    assert shown[5][1].data["text/plain"].startswith("<one: train, ok, ")
    assert "trial 2/2, " in str(shown[6])
    assert "image/png" in shown[7][0].data
    assert shown[9][0].text == "['A', 'B'] 0\n"
    assert shown[10][0].text == "True ['epochs=']\n"
    assert shown[11][-1].traceback == [f"DataError: {shown[11][-1].evalue}"]
    assert shown[12][-1].data["text/plain"] == "True"
    settings = sp500.load_run(tmp_path / "runs" / "one").config
    assert (settings["task"].rpartition(":")[2], settings["model"]["kind"].rpartition(":")[2]) == ("Calm", "Net")
    (copy,) = (tmp_path / "runs" / "one" / "source").glob("net_*.py")
    assert copy.read_text().startswith("from torch import nn\n\nWIDTH = 8\n\ndef width")
    # Another process, which has no notebook, serves what was trained.
    code = "import sp500; print(sp500.load_run('runs/one').predictor().judge()['test']['mse'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(sp500.load_run(tmp_path / "runs" / "one").metrics["test"]["mse"])


@pytest.fixture
def prices() -> pd.DataFrame:
    """Closes of two random walks, a column each."""
    days = pd.bdate_range("2015-01-01", periods=900)
    walk = pd.Series(range(900)).sample(frac=1, random_state=0).to_numpy() / 900 - 0.5
    steps = pd.DataFrame({"A": walk, "B": walk[::-1]}, index=days)
    return 100 * (1 + steps / 50).cumprod()


def test_table_is_a_file_with_its_content_in_the_fingerprint(tmp_path: Path, prices: pd.DataFrame) -> None:
    quick: dict[str, Any] = {"runs_dir": tmp_path, "model": "linear", "epochs": 1}
    first = sp500.train(name="a", source=prices, **quick)
    again = sp500.train(name="b", data={"source": prices.copy()}, **quick)
    prices.iloc[5, 0] *= 1.01
    other = sp500.train(name="c", source=prices, **quick)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert json.dumps(first.metrics) == json.dumps(again.metrics)
    assert [result.name for result in sp500.load_runs(tmp_path)] == ["a", "b", "c"]
    assert "linear" in sp500.compare(tmp_path).read_text()
    assert list(first.history.columns[:2]) == ["train_loss", "valid_loss"]


def test_every_result_is_drawn_or_said_to_have_nothing(tmp_path: Path, prices: pd.DataFrame) -> None:
    quick: dict[str, Any] = {"runs_dir": tmp_path, "model": "linear", "epochs": 2, "source": prices}
    folds = sp500.walk_forward(name="folds", folds=2, **quick)
    (line, *_) = folds.plot().axes[0].lines
    assert list(line.get_ydata()) == [fold["improvement"]["value"] for fold in folds.folds]
    assert list(folds.history.index) == [1, 2]
    keys = ("windows", "arm", "num_workers", "seconds", "status")
    values = [(10, "in_memory", 0, 3, "ok"), (20, "in_memory", 0, 6, "ok"), (30, "in_memory", 0, 1, "out_of_memory")]
    rows = [dict(zip(keys, row, strict=True)) for row in [*values, (10, "ray_data", 2, 4, "ok")]]
    sizes = replace(folds, record=folds.record.model_copy(update={"folds": None, "scale": rows}))
    assert list(sizes.plot().axes[0].lines[0].get_ydata()) == [3, 6]
    labels = [text.get_text() for text in sizes.plot().axes[0].get_legend().get_texts()]
    assert labels == ["in_memory", "ray_data, 2 workers"]
    with pytest.raises(ConfigError, match="nothing to plot"):
        replace(folds, record=folds.record.model_copy(update={"folds": None})).plot()


def test_script_without_a_guard_is_told_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sp500\n\n\nclass Mine(sp500.PriceTask):\n    pass\n\n\nsp500.train(task=Mine, epochs=1)\n"
    )
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "mine.py starts a run when it is imported" in done.stderr


@pytest.mark.parametrize("settings", [{"epochs": 1, "train": {"epochs": 2}}, {"task": type("Local.x", (), {})}])
def test_setting_that_cannot_be_taken_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"given twice|inside a function"):
        sp500.train(runs_dir=tmp_path, **settings)


def test_last_definition_of_a_name_counts_and_one_that_is_missing_is_named() -> None:
    cells = ["%pip list", "N = 1\ndef f():\n    return N", "N = 2", "x = [f() for _ in range(3)]"]
    assert collect("f", cells, {"N": 2, "f": 1}) == "def f():\n    return N\n\nN = 2\n"
    with pytest.raises(ConfigError, match="M is used, but no cell"):
        collect("f", ["def f():\n    return M"], {"M": 2, "f": 1})
