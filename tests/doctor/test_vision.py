"""A torchvision of another build than torch is found by importing it, and named with the command that repairs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sp500.doctor import versions

ROOT = Path(__file__).parents[2]
FAILS = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def doctor(folder, *words):
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "sp500.cli", "doctor", "--on", "local", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def package(folder, name, version, code=""):
    """A folder that Python takes for an installed package."""
    (folder / name).mkdir()
    (folder / name / "version.py").write_text(f"__version__ = '{version}'\ngit_version = '0'\n")
    (folder / name / "__init__.py").write_text(code)


def test_torchvision_that_fails_exits_2_and_names_both_builds(tmp_path):
    package(tmp_path, "torch", "2.13.0+cpu")
    package(tmp_path, "torchvision", "0.28.0+cu130", FAILS)
    done = doctor(tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stdout.splitlines() if line.split()[1:2] == ["torchvision"]]
    assert line.startswith("wrong")
    assert "torchvision 0.28.0+cu130 cannot be imported with torch 2.13.0+cpu" in line
    assert "operator torchvision::nms does not exist" in line
    assert "--index-url https://download.pytorch.org/whl/cpu 'torchvision==0.28.*'" in line


def test_nothing_is_said_or_started_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(versions, "find_spec", lambda _: None)
    monkeypatch.setattr(versions.subprocess, "run", None)
    assert versions.torchvision() == ()


@pytest.mark.parametrize(
    ("torch", "advice"),
    [
        ("2.9.1+cu128", "--index-url https://download.pytorch.org/whl/cu128 'torchvision==0.24.*'"),
        ("2.13.0", "--no-deps 'torchvision==0.28.*'"),
        ("", "from the same index"),
    ],
)
def test_advice_is_for_the_torch_that_is_there(torch, advice):
    assert advice in versions.advise_torchvision(torch)
