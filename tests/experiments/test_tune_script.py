"""A search as a user runs it: killed at any time, it runs nothing twice and loses nothing."""

import json
import random
import signal
import subprocess
import time

import optuna
import pytest

from sp500.tuning.ledger import Ledger

FLAGS = ("--data.tickers", "AAPL", "--data.start", "2014-01-01", "--data.window", "10", "--pack", 4)


def lines(path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(argv, ledger, generator) -> None:
    """Start a search and kill it after a few more results: at once after one, or up to a second later."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wanted, started = lines(ledger) + generator.randint(1, 6), time.monotonic()
    while lines(ledger) < wanted and process.poll() is None:
        assert time.monotonic() - started < 120
        time.sleep(0.01)
    time.sleep(generator.choice([0.0, 0.02, generator.random()]))
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("mode", "kills"), [("sequential", 7), ("parallel", 3)])
def test_killed_search_runs_nothing_twice_and_loses_nothing(command, script, tmp_path, mode, kills):
    (tmp_path / "space.yaml").write_text(f"train.seed: {list(range(72))}\ntrain.epochs: [12]\n")
    flags = (*FLAGS, "--space", tmp_path / "space.yaml", "--mode", mode, "--runs-dir", tmp_path, "--name", "s")
    ledger, generator, before = tmp_path / "s" / "trials.jsonl", random.Random(7), ""
    for kill in range(kills):
        killed(command("tune", *flags, *(["--resume"] if kill else [])), ledger, generator)
        now = ledger.read_text()
        assert now.startswith(before[: before.rfind("\n") + 1])
        before = now
    done = len(Ledger(tmp_path / "s").results)
    assert 0 < done < 72
    ended = script("tune", *flags, "--resume", "--json")
    assert ended.returncode == 0, ended.stderr
    search = json.loads(ended.stdout)["search"]
    assert (search["configs"], search["rerun"], search["resumed"], search["failed"]) == (72, 0, done, 0)
    found = Ledger(tmp_path / "s")
    assert (len(found.results), found.rerun) == (72, 0)
    assert search["best"]["id"] == found.best().id
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 's' / 'optuna.db'}")
    assert len(study.trials) == 72
    assert study.best_value == found.best().score


def test_space_that_cannot_be_searched_is_refused_before_anything_starts(script, tmp_path):
    (tmp_path / "bad.yaml").write_text("model.hiden: [8, 16]\n")
    done = script("tune", "--space", tmp_path / "bad.yaml", "--runs-dir", tmp_path / "runs")
    assert done.returncode == 2
    assert "bad.yaml" in done.stderr
    assert "did you mean model.hidden?" in done.stderr
