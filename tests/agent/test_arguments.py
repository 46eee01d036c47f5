"""Which flags of the scripts are open to agents: told by the scripts' own help."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sp500.agent import arguments

ROOT = Path(__file__).parent.parent.parent
SERVICES = {"serve"}  # answers until it is stopped: no agent may start it, since jobs of the queue end
EXPERIMENTS = sorted({path.stem for path in (ROOT / "experiments").glob("*.py")} - SERVICES)


KINDS = [
    ["--task", "images", "--model.kind", "timm"],
    ["--task", "language", "--model.kind", "hf"],
    ["--task", "synthetic", "--model.kind", "mine.py:Net"],
]
"""Between them, every task's section and every setting of a model."""


def show_help(experiment: str, flags: list[str]) -> str:
    command = [sys.executable, str(ROOT / "experiments" / f"{experiment}.py"), *flags, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_flag_of_a_script_is_open_or_closed_and_none_is_open_that_it_lacks(experiment):
    kinds = {"compare": [[]], "walk_forward": [["--model.kind", "mine.py:Net"]]}.get(experiment, KINDS)
    text = "".join(show_help(experiment, kind) for kind in kinds)
    shown = {
        re.sub(r"(^|\.)no-", r"\1", name) for name in re.findall(r"(?:^│ |, )--([a-z][a-z.-]*)", text, re.MULTILINE)
    }
    assert shown - arguments.OPEN[experiment] - set(arguments.CLOSED) == {"help"}
    other_kinds = {flag for flag in arguments.OPEN["train"] if "." in flag}
    assert arguments.OPEN[experiment] - shown - (other_kinds if experiment == "walk_forward" else set()) == set()


def test_experiments_are_the_scripts_of_the_project():
    assert sorted(arguments.OPEN) == EXPERIMENTS


def test_every_closed_flag_is_open_nowhere():
    assert all(flags.isdisjoint(arguments.CLOSED) for flags in arguments.OPEN.values())


@pytest.mark.parametrize(
    "words",
    [
        ["--task", "mine.py:Task"],
        ["--task=mine:Task"],
        ["--model.kind", "nets.py:Net"],
        ["--model.kind", "installed"],
        ["--method", "mine.py:Hill"],
    ],
)
def test_python_of_a_users_cannot_be_named(words):
    assert "no Python of a user's" in arguments.file_fault(words)


def test_names_of_tasks_and_models_are_taken():
    assert arguments.file_fault(["--task", "images", "--model.kind", "cnn", "--train.epochs", "3"]) == ""
    assert arguments.fault("--model.options.width", "train") != ""
