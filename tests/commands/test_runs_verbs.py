"""`sp500 runs`: what is listed, shown and deleted, and what is not deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp500.cli import main
from sp500.runs.store import RunStore
from sp500.serving.registry import Registry

LINEAR = ("train", "--model.kind", "linear", "--train.max-steps", "2", "--data.start", "2014-01-01")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SP500_RUNS_DIR", str(tmp_path / "runs"))
    for name in ("a", "b"):
        assert main([*LINEAR, "--name", name]) == 0
    return tmp_path / "runs"


def test_runs_are_listed_and_shown_and_deleted_all_or_none(runs, capfd):
    with RunStore(runs).open("c") as run:
        run.write_start(RunStore(runs).run("a").start_record().model_copy(update={"name": "c"}))
    capfd.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["runs"]
    assert [(row["name"], row["model"], row["status"]) for row in listed] == [
        ("a", "linear", "ok"), ("b", "linear", "ok"), ("c", "linear", "killed"),
    ]  # fmt: skip
    assert main(["runs", "show", "a", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["name"] == "a"

    Registry(runs).promote("m", "b", "0" * 64, "forecast", canary=None, shadow=False)
    for names in (("a", "nothing"), ("a", "b"), ("a", "../runs")):
        assert main(["runs", "rm", *names]) == 2
    with RunStore(runs).open("c", resume=True):
        assert main(["runs", "rm", "a", "c"]) == 2
    assert {path.name for path in runs.iterdir()} >= {"a", "b", "c"}
    assert main(["runs", "rm", "a", "c"]) == 0
    assert not (runs / "a").exists()
    assert not (runs / "c").exists()


def test_wrong_path_does_not_keep_the_name_of_the_run(runs, tmp_path):
    wrong = tmp_path / "prices.csv"
    wrong.write_text("date,ticker,close\n2020-01-02,KO,-1\n")
    assert main([*LINEAR, "--name", "d", "--data.source", str(wrong)]) == 3
    assert main([*LINEAR, "--name", "d"]) == 0
    assert main([*LINEAR, "--name", "d"]) == 2
    assert main([*LINEAR, "--name", "d", "--seed", "1", "--overwrite"]) == 0
    assert RunStore(runs).record("d").seed == 1
