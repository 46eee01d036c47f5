"""Searches of a program that knows nothing of this package: arms, resume, failures, report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from sp500.commands.experiments import compare, tune
from sp500.distributed.program_slots import count_slots
from sp500.errors import ResourcesError
from sp500.plugins import admission
from sp500.runs.record import RunRecord
from sp500.runs.results import SearchSummary
from sp500.runs.store import RunStore
from sp500.runs.trials import read_trials

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import json, os, sys, time
arguments = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
x, mode = float(arguments["x"]), arguments.get("mode", "")
with open(arguments["folder"] + "/started", "a") as file:
    file.write(f"{os.getpid()}\\n")
if mode == "fail; touch evil":
    sys.exit(3)
for epoch in range(1, 5):
    time.sleep(float(arguments.get("sleep", 0)))
    if mode != "silent":
        print(json.dumps({"epoch": epoch, "loss": (x - 0.3) ** 2 + 1 / epoch, "score": x, "samples": epoch * 10}))
"""
COMMAND = "python original.py --x={x} --folder={folder}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a script and a space, on a machine where nothing was given yet."""
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.chdir(tmp_path)
    Path("original.py").write_text(SCRIPT)
    Path("space.yaml").write_text("x: [0.1, 0.2, 0.5, 0.9]\n")
    return tmp_path


def search(name: str, *flags: str, command: str = COMMAND, metric: str = "loss") -> int:
    words = ["--command", command, "--space", "space.yaml", "--metric", metric, "--name", name]
    return tune.main([*words, *flags])


def ended(name: str) -> tuple[RunRecord, SearchSummary]:
    record = RunStore(Path("runs")).record(name)
    assert record
    assert record.search
    return record, record.search


def test_sequential_and_parallel_find_the_same_best_and_are_compared_in_the_report():
    assert search("one") == search("two", "--mode", "parallel") == 0
    (one, first), (two, second) = ended("one"), ended("two")
    assert first["best"]["overrides"] == second["best"]["overrides"] == {"x": 0.2}
    assert first["best"]["valid_loss"] == pytest.approx(0.01 + 1 / 4)
    assert first["key"] == second["key"]
    assert (one.fingerprint, one.samples, one.best_epoch) == (two.fingerprint, 4 * 40, 4)
    assert compare.main([]) == 0
    page, numbers = Path("runs/report/report.md").read_text(), json.loads(Path("runs/report/report.json").read_text())
    assert {"sequential", "parallel"} == numbers["search"]["arms"].keys()
    assert numbers["search"]["same_best"]
    assert "4 programs took" in page
    assert "Best of 4 configs tried: x 0.2 (loss 0.26)" in page


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_asha_stops_weak_programs_which_count_with_what_they_had_reached(mode):
    flags = ["--stop", "asha", "--stop-first", "1", "--stop-reduction", "2", "--mode", mode]
    assert search("one", *flags, command=f"{COMMAND} --sleep=0.2") == 0
    _, found = ended("one")
    assert found["best"]["overrides"] == {"x": 0.2}
    stopped = {
        trial.overrides["x"]: (trial.stopped, trial.epochs, trial.status) for trial in read_trials(Path("runs/one"))
    }
    assert stopped[0.2] == (None, 4, "ok")
    assert stopped[0.9] == (1, 1, "ok")
    assert sum(found["stopped"].values()) == sum(rung is not None for rung, _, _ in stopped.values())


def test_highest_value_is_the_best_with_maximize():
    assert search("one", "--maximize", metric="score") == 0
    _, found = ended("one")
    assert found["best"]["overrides"] == {"x": 0.9}
    assert found["best"]["valid_loss"] == -0.9
    assert compare.main([]) == 0
    assert "(score 0.9)" in Path("runs/report/report.md").read_text()


def test_program_that_fails_is_a_failed_trial_with_its_reason_and_no_shell_reads_its_values():
    Path("space.yaml").write_text("x: [0.2, 0.5]\nmode: ['fail; touch evil', 'silent', 'good one']\n")
    assert search("one", command=f"{COMMAND} --mode={{mode}}") == 0
    reasons = {(trial.overrides["mode"], trial.reason) for trial in read_trials(Path("runs/one"))}
    assert reasons == {
        ("fail; touch evil", "ended with exit code 3"),
        ("silent", "printed no loss, which --metric names"),
        ("good one", ""),
    }
    assert not list(Path().rglob("evil"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--command", "python original.py --x={xx}"], "unknown name {xx}; did you mean {x}?"),
        (["--command", "python original.py"], "has no place for x"),
        (["--command", COMMAND, "--metric-pattern", "loss .*"], "has no group for valid_loss"),
        (["--command", COMMAND, "--metric-pattern", r"(?P<epoch>\d+)"], "has no group for valid_loss"),
        (["--command", COMMAND, "--num-workers", "2"], "num_workers = 2: a search runs each program as one process"),
        (["--command", COMMAND, "--space", "none.yaml"], "no such file"),
        (["--command", COMMAND, "--file", "none.txt"], "none.txt"),
        (["--command", COMMAND, "--model.kind", "mlp"], "--model.kind"),
    ],
)
def test_wrong_search_is_refused_before_there_is_a_run(flags, message, capfd):
    try:
        code = tune.main(["--space", "space.yaml", *flags])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert not Path("runs").exists()


def test_search_with_another_script_than_it_began_with_is_refused(capfd):
    assert search("one") == 0
    Path("original.py").write_text(SCRIPT + "# edited\n")
    for ended in (True, False):
        if not ended:
            Path("runs/one/record.json").unlink()
        assert tune.main(["--name", "one", "--resume"]) == 2
        assert "of original.py" in capfd.readouterr().err


def test_ended_search_whose_space_has_changed_is_refused(capfd):
    assert search("one") == 0
    assert tune.main(["--name", "one", "--resume"]) == 0
    Path("space.yaml").write_text("x: [0.1, 0.5]\n")
    assert tune.main(["--name", "one", "--resume"]) == 2
    assert "ended with 4 configs" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_killed_search_leaves_no_process_and_reruns_no_finished_trial(mode, folder):
    flags = ["--command", f"{COMMAND} --sleep=0.3", "--space", "space.yaml", "--metric", "loss", "--mode", mode]
    argv = [sys.executable, str(ROOT / "experiments" / "tune.py"), "--name", "one"]
    environment = {**os.environ, "HOME": str(folder / "home")}
    first = subprocess.Popen([*argv, *flags], env=environment)
    deadline = time.monotonic() + 120
    while len(read_trials(Path("runs/one"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = {trial.id for trial in read_trials(Path("runs/one"))}
    assert 2 <= len(finished) < 4
    started = {int(line) for path in Path("runs/one/trials").glob("*/started") for line in path.read_text().split()}
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert subprocess.run([*argv, "--resume"], env=environment, check=False).returncode == 0
    _, found = ended("one")
    assert found["best"]["overrides"] == {"x": 0.2}
    assert (found["configs"], found["resumed"], found["rerun"]) == (4, len(finished), 0)


def test_search_on_ray_finds_the_same_best(ray_cluster):
    Path("space.yaml").write_text("x: [0.1, 0.2, 0.5, 0.9]\nmode: [fine, 'fail; touch evil']\n")
    command = f"{COMMAND} --mode={{mode}}"
    assert search("one", command=command) == search("two", "--mode", "ray", command=command) == 0
    (_, first), (two, second) = ended("one"), ended("two")
    assert first["best"] == second["best"]
    assert (second["failed"], second["key"]) == (4, first["key"])
    assert two.machine.cluster["CPU"] >= 1


def test_program_that_no_node_holds_is_refused(ray_cluster, capfd):
    assert search("one", "--mode", "ray", "--trial-cpus", "999") != 0
    assert "trial_cpus 999" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "count"),
    [
        ([(2, 0), (2, 0)], 3, 0, 0),
        ([(2, 0), (5, 0)], 2, 0, 3),
        ([(8, 2), (8, 0)], 3, 1, 2),
        ([(8, 0), (1, 1)], 2, 1, 0),
    ],
)
def test_slots_are_counted_by_node(nodes, cpus, gpus, count):
    shares = [{"CPU": float(cpu), "GPU": float(gpu)} for cpu, gpu in nodes]
    with nullcontext() if count else pytest.raises(ResourcesError):
        assert count_slots(shares, cpus, gpus) == count
