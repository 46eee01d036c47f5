"""Progress of real jobs on this machine: a training and a search, submitted, looked at while they run, and ended.

What the verbs say is compared with sums over the lines that the run had written by then.
"""

import json
import os
import time
from datetime import datetime
from pathlib import Path

import forks
import pytest
from queue_fakes import managed

ROOT = Path(__file__).parents[3]
TRAIN = ("python", "experiments/train.py", "--task", "synthetic", "--train.epochs", "100000")
TRAIN = (*TRAIN, "--train.early-stop-patience", "0")


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A state folder; when the tests are done, whoever still manages it is ended."""
    with managed(tmp_path_factory.mktemp("live") / "sp500") as folder:
        yield folder


@pytest.fixture
def sp500(state, tmp_path):
    """Runs `sp500 jobs` on that folder to its end, with a folder of runs: its stdout."""

    def run(*words):
        folders = {"XDG_STATE_HOME": str(state.parent), "SP500_RUNS_DIR": str(tmp_path / "runs")}
        done = forks.run(["sp500", "jobs", *words], cwd=ROOT, env={**os.environ, **folders})
        assert done.returncode == 0, (words, done)
        return done.stdout

    return run


@pytest.fixture
def submit(sp500):
    """Submits a command and gives the job's id; a job that still runs at the end of the test is stopped."""
    ids = []

    def start(*command):
        ids.append(json.loads(sp500("submit", "--workers", "1", "--json", "--", *command))["id"])
        return ids[-1]

    yield start
    sp500("stop", *ids)


def progress_of(sp500, id, at_least, file):
    """Progress of a job as `status` tells it, once so many of its units are done.

    `file`: where the run writes a line per unit. To look there first costs no process.
    """
    end = time.monotonic() + 120
    while sum(len(lines(path)) for path in file.parents[1].glob(f"{file.parent.name}/{file.name}")) < at_least:
        assert time.monotonic() < end, sp500("logs", id)
        time.sleep(0.05)
    while ((job := json.loads(sp500("status", id, "--json")))["progress"] or {"done": -1})["done"] < at_least:
        assert time.monotonic() < end, job
        assert job["state"] in {"QUEUED", "PENDING", "RUNNING"}, job
        time.sleep(0.2)
    return job["progress"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds(moment):
    return datetime.fromisoformat(moment).timestamp()


def check_training(progress, epochs, done_before):
    """The figures are those of the epochs of this attempt, of which `done_before` were there when it began."""
    known = [epoch for epoch in epochs if epoch["epoch"] <= progress["done"]]
    own = known[done_before:]
    assert (progress["kind"], progress["total"], progress["at_most"]) == ("epoch", 100000, False)
    assert progress["updated"] == pytest.approx(seconds(known[-1]["finished"]), abs=1)
    assert progress["best_loss"] == pytest.approx(min(epoch["valid_loss"] for epoch in known), rel=1e-5)
    speed = sum(epoch["samples"] for epoch in own) / sum(epoch["train_seconds"] for epoch in own)
    assert progress["samples_per_second"] == pytest.approx(speed, rel=0.2)
    each = sum(epoch["seconds"] for epoch in own) / len(own)
    assert 0 < progress["eta_seconds"] <= each * (100000 - progress["done"]) + 1


def check_log(sp500, id, progress):
    """The figures are those of a line that the job wrote."""
    said = next(line for line in sp500("logs", id).splitlines() if f" epoch {progress['done']}/100000, " in line)
    assert f"best {progress['best_loss']:.6g}, " in said
    assert (progress["kind"], progress["total"]) == ("epoch", 100000)
    assert progress["samples_per_second"] > 0
    assert progress["eta_seconds"] > 0


def test_training_shows_the_figures_of_its_epochs_also_of_a_resumed_one(sp500, submit, tmp_path):
    runs = tmp_path / "runs"
    first = submit(*TRAIN)  # its name is made when it starts
    progress = progress_of(sp500, first, 2, runs / "*" / "epochs.jsonl")
    check_log(sp500, first, progress)
    listed = next(line for line in sp500("list").splitlines() if first in line)
    assert " epoch " in listed
    assert "/100000, " in listed
    sp500("stop", first)
    (file,) = runs.glob("*/epochs.jsonl")
    before = lines(file)
    assert json.loads(sp500("status", first, "--json"))["progress"] is None

    again = submit(*TRAIN, "--name", file.parent.name, "--resume")
    progress = progress_of(sp500, again, len(before) + 2, file)
    check_training(progress, lines(file), done_before=len(before))
