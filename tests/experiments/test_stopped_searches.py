"""A search with a stopper, killed with SIGKILL at any moment: no decided rung and no epoch before it runs again."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sp500.runs.trials import read_trials

ROOT = Path(__file__).parents[2]
KILLS = 5
# Writes what happens to a log, in the order in which it happens: each epoch that begins, and each decision.
TRACE = """
import os, runpy, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
from sp500.runs import trials
from sp500.training import loop
from sp500.training.pause import PausedTraining
add, epoch = trials.Ledger.add_decision, loop._Fitting._epoch
def add_decision(self, row):
    add(self, row)
    os.write(log, f"rung {row.trial} {row.rung}\\n".encode())
def begin(self, number):
    if isinstance(self.checkpoints, PausedTraining):  # not the best one, which trains once more at the end
        os.write(log, f"epoch {self.config.fingerprint} {number}\\n".encode())
    return epoch(self, number)
trials.Ledger.add_decision, loop._Fitting._epoch = add_decision, begin
sys.argv, sys.path[0] = sys.argv[2:], os.path.dirname(sys.argv[2])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def events(log: Path) -> list[tuple[str, str, int]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [(kind, trial, int(number)) for kind, trial, number in map(str.split, lines)]


@pytest.mark.parametrize("mode", ["packed", "sequential"])
def test_killed_search_runs_no_decided_rung_and_no_epoch_before_it_again(tmp_path, mode):
    (tmp_path / "space.yaml").write_text(
        "model.kind: lstm\nmodel.hidden: [4, 8]\ntrain.lr: {low: 0.001, high: 0.1, log: true}\ntrain.seed: [0, 1]\n"
    )
    (tmp_path / "trace.py").write_text(TRACE)
    log, chance, killed, started = tmp_path / "log", random.Random(mode), 0, time.monotonic()
    argv = [sys.executable, str(tmp_path / "trace.py"), str(log), str(ROOT / "experiments" / "tune.py")]
    argv += ["--space", str(tmp_path / "space.yaml"), "--trials", "24", "--method", "tpe", "--mode", mode]
    argv += ["--stop", "asha", "--stop-first", "1"]
    argv += ["--train.epochs", "10", "--data.tickers", "AAPL", "--data.start", "2016-01-01", "--data.window", "20"]
    argv += ["--runs-dir", str(tmp_path), "--name", "s", "--json"]
    while killed < KILLS:
        wanted = len(events(log)) + chance.randint(3, 14)
        process = subprocess.Popen([*argv, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(events(log)) < wanted:
            assert process.poll() is None
            assert time.monotonic() - started < 500
            time.sleep(0.01)
        time.sleep(chance.choice([0.0, 0.01, 0.1]) * chance.random())
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    ended = subprocess.run([*argv, "--resume"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr

    decided, rungs = dict[str, int](), list[tuple[str, int]]()
    for kind, trial, number in events(log):
        if kind == "rung":
            rungs.append((trial, number))
            decided[trial] = number
        else:
            assert number > decided.get(trial, 0)
    assert len(set(rungs)) == len(rungs) > 24
    search, results = json.loads(ended.stdout)["search"], read_trials(tmp_path / "s")
    assert len(results) == len({result.id for result in results}) == 24
    assert (search["rerun"], search["failed"]) == (0, 0)
    stopped = {result.id: result.stopped for result in results if result.stopped}
    assert stopped == {trial: decided[trial] for trial in stopped}
    assert sum(search["stopped"].values()) == len(stopped) > 5
