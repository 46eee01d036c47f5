"""Runs the entry scripts as a user does: a process, its streams, its exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import run

ROOT = Path(__file__).parent.parent.parent
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """Command line of an entry script."""
    return lambda name, *arguments: [sys.executable, str(ROOT / "experiments" / f"{name}.py"), *map(str, arguments)]


@pytest.fixture(scope="session")
def script(command) -> Script:
    """Runs an entry script that needs no Ray to its end."""
    return lambda name, *arguments: run(command(name, *arguments)[1:])


@pytest.fixture(scope="session")
def script_on_ray(command) -> Script:
    """Runs an entry script to its end, from its first import on."""
    return lambda name, *arguments: subprocess.run(
        command(name, *arguments), capture_output=True, text=True, timeout=500, check=False
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """One folder of runs for all tests that end in the report."""
    return tmp_path_factory.mktemp("runs")
