"""A search as a user runs it: what it refuses, which arm it takes, and how it is interrupted."""

import json
import signal
import time

import forks
import psutil
import pytest

FLAGS = ("--data.tickers", "AAPL", "--data.start", "2014-01-01", "--data.window", "10", "--pack", 4)
FLAGS += ("--train.early-stop-patience", 0)


def lines(path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_space_that_cannot_be_searched_is_refused_before_anything_starts(script, tmp_path):
    (tmp_path / "bad.yaml").write_text("model.hiden: [8, 16]\n")
    done = script("tune", "--space", tmp_path / "bad.yaml", "--runs-dir", tmp_path / "runs")
    assert done.returncode == 2
    assert "bad.yaml" in done.stderr
    assert "did you mean model.hidden?" in done.stderr


def test_mode_auto_names_the_arm_that_it_takes_and_why(script, tmp_path):
    flags = ("--data.tickers", "AAPL", "--data.start", "2014-01-01", "--train.epochs", 1, "--runs-dir", tmp_path)
    done = script("tune", *flags, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["arm"] == "packed"
    assert "mode packed: expected for 18 configs are one after another" in done.stderr
    assert list(record["search"]["arms"]) == ["packed"]


def test_interrupted_search_without_ray_ends_soon_and_leaves_no_process(command, tmp_path):
    (tmp_path / "space.yaml").write_text("train.seed: [0, 1]\ntrain.epochs: [2, 1000000]\n")
    argv = command("tune", *FLAGS, "--space", tmp_path / "space.yaml", "--mode", "packed", "--runs-dir", tmp_path)
    process = forks.Script([*argv[1:], "--name", "s"])
    started = time.monotonic()
    while not lines(tmp_path / "s" / "trials.jsonl"):
        assert process.poll() is None
        assert time.monotonic() - started < 180
        time.sleep(0.05)
    packs = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [pack for pack in packs if pack.is_running()] == []
    assert json.loads((tmp_path / "s" / "record.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--method", "tpe", "--trials", 30), "grid18: has 18 different configs, 30 asked for"),
        (("--method", "anneal"), "unknown method 'anneal': expected auto, grid, random"),
        (("--method", "cmaes", "--space", "wide"), "model.kind lists values that are not numbers"),
        (("--stop", "asha", "--halving", 3), "stop: each config trains alone"),
        (("--stop", "asha", "--stop-first", 25), "25 is not below --train.epochs 25"),
        (("--stop", "asha", "--mode", "ray", "--workers-per-trial", 2), "not with --halving, --stop"),
        (("--space", "lstm12", "--mode", "packed", "--halving", 3), "no two configs of space lstm12"),
        (("--data.valid-from-train", 0), "needs a validation split"),
        (("--mode", "both"), "both"),
        (("--mode", "packed", "--workers-per-trial", 2), "needs --mode ray"),
        (("--mode", "sequential", "--halving", 3), "halving: stops members of packs"),
        (("--mode", "all", "--halving", 3), "halving: stops members of packs"),
    ],
)
def test_search_that_cannot_be_done_is_refused_and_leaves_no_folder(script, tmp_path, flags, reason):
    done = script("tune", *flags, "--runs-dir", tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert list(tmp_path.iterdir()) == []
