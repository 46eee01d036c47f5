"""The file of docs/your-own.md in every arm, as its reader types it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import psutil
import pytest
import your_own

import sp500
from sp500.runs.store import RunStore

ROOT = Path(__file__).parent.parent.parent
OWN: dict[str, Any] = {
    "task": "biopsies.py:Biopsies",
    "model": {"kind": "biopsies.py:Residual", "options": {"width": 32}},
}
FLAGS = ["--task", "biopsies.py:Biopsies", "--model.kind", "biopsies.py:Residual", "--model.options.width", "32"]
DOUBLE: dict[str, Any] = {"train": {"epochs": 4, "dtype": "float64"}}


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)


def command(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = forks.run([*words], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == status, done.stderr
    return done


def test_workers_of_ray_train_as_one_process_does_which_judges_their_run_again(ray_cluster):
    alone = sp500.train(name="alone", **OWN, **DOUBLE)
    Path("biopsies.py").rename("kept.py")  # workers have the run's copy alone
    own = json.loads(json.dumps(OWN).replace("biopsies.py", "kept.py"))
    ray = sp500.train(name="ray", num_workers=2, **own, **DOUBLE)
    assert ray.metrics == alone.metrics
    assert sp500.Predictor("runs/ray").judge() == ray.metrics
    losses = [[epoch.valid_loss for epoch in RunStore(Path("runs")).epochs(name)] for name in ("alone", "ray")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)


@pytest.mark.parametrize("mode", ["sequential", "packed", "ray"])
def test_search_finds_the_same_in_every_mode(mode, ray_cluster):
    record = sp500.search(name=mode, space="widths.yaml", mode=mode, **OWN, **DOUBLE)
    search = record.search
    assert search is not None
    assert (search["configs"], search["failed"]) == (6, 0)
    assert search["best"]["overrides"] == {"model.options.width": 64, "train.lr": 0.01}
    again = sp500.search(name=mode, space="widths.yaml", mode=mode, resume=True, **OWN, **DOUBLE)
    assert again == record


def test_folds_take_a_task_that_inherits_from_returns(ray_cluster):
    Path("huber.py").write_text(
        "from torch.nn.functional import huber_loss\nfrom sp500.tasks.returns import Returns\n\n\n"
        "class Huber(Returns):\n"
        "    def loss(self, output, target):\n"
        "        return huber_loss(output.squeeze(-1), target, reduction='sum')\n\n"
        "    def judge(self, outputs, dataset):\n"
        "        return super().judge(outputs, dataset)\n"
    )
    settings: dict[str, Any] = {"folds": 2, "test_days": 100, "data": {"tickers": ("KO",)}, "train": {"epochs": 2}}
    alone, ray = (
        sp500.walk_forward(name=f"w{workers}", task="huber.py:Huber", num_workers=workers, **settings)
        for workers in (0, 2)
    )
    assert alone.folds is not None
    assert ray.folds is not None
    assert [fold["test"] for fold in alone.folds] == [fold["test"] for fold in ray.folds]
    direction = Path("huber.py").read_text().partition("    def judge")[0].replace("Returns", "Direction")
    Path("huber.py").write_text(direction)
    with pytest.raises(sp500.errors.ConfigError, match="inherits judge from Direction"):
        sp500.walk_forward(name="unjudged", task="huber.py:Huber", **settings)
    plain = sp500.walk_forward(name="plain", **settings)
    assert plain.metrics["test"] != alone.metrics["test"]
    with pytest.raises(sp500.errors.ConfigError, match="cut by date"):
        sp500.walk_forward(name="none", **OWN, **settings)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[list[str]]:
    """A queue of its own; whoever still manages it in the end is ended."""
    folder = str(tmp_path / "state")
    yield ["--state-dir", folder]
    for process in psutil.process_iter(["cmdline"]):
        if folder in (process.info["cmdline"] or []):
            process.terminate()
            process.wait(120)


def test_job_of_the_queue_trains_it_and_the_report_names_it(queue):
    jobs = ["sp500", "jobs"]
    train = ["--", "python", str(ROOT / "experiments" / "train.py"), *FLAGS, "--name", "job", "--train.epochs", "3"]
    submitted = json.loads(command(*jobs, "submit", "--workers", "1", "--json", *queue, *train).stdout)
    command(*jobs, "wait", submitted["id"], *queue)
    record = RunStore(Path("runs")).record("job")
    assert record is not None
    assert record.status == "ok"
    report = command(str(ROOT / "experiments" / "compare.py")).stdout
    assert "0 of 1 model" in report
    assert "source/" not in report
    page = Path("runs/report/index.html").read_text()
    assert "Residual width 32" in page
    assert "source/" not in page


def test_flags_that_a_command_resumes_with_are_those_of_its_run():
    script = str(ROOT / "experiments" / "train.py")
    command(script, *FLAGS, "--name", "one", "--train.epochs", "2")
    Path("biopsies.py").write_text("raise RuntimeError\n")
    Path("runs/one/record.json").unlink()
    command(script, "--resume", "--name", "one")
    record = RunStore(Path("runs")).record("one")
    assert record is not None
    assert record.config["model"]["options"] == {"width": 32}
    refused = command(script, *FLAGS, "--name", "one", "--resume", status=2)
    assert "differs from the run's" in refused.stderr


def test_arms_of_a_scale_run_take_it():
    arms = ("in_memory", "streaming")
    record = sp500.scale(name="scale", arms=arms, multipliers=(2,), **OWN, train={"epochs": 2})
    assert record.scale is not None
    assert [(row["multiplier"], row["arm"], row["status"]) for row in record.scale] == [(2, arm, "ok") for arm in arms]
    assert len({row["settings"] for row in record.scale}) == 1


def test_untrained_model_of_ones_own_is_never_the_best():
    """It is not the naive forecast, as which the report would take it."""
    Path("nets.py").write_text(
        "from torch import nn\n\n\ndef net(config, dataset):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(dataset.window * dataset.features, 1))\n"
    )
    record = sp500.train(name="wild", model={"kind": "nets.py:net"}, train={"lr": 3.0, "epochs": 2})
    assert record.best_epoch in {1, 2}
