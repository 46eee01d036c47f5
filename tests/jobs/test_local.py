"""Jobs of this machine: the contract, and what is killed, when, with which outcome. The kills are real."""

from __future__ import annotations

import sys

import pytest
from executor_contract import LINES, ExecutorContract

from sp500.jobs import local
from sp500.jobs.spec import JobSpec


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "jobs"


@pytest.fixture
def ask(tmp_path):
    """Makes a request for a Python program; every start of it appends a line to `starts`."""

    def make(program, **changes):
        count = f"open({str(tmp_path / 'starts')!r}, 'a').write('start\\n')"
        spec = JobSpec(argv=("python", "-c", f"{count}; {program}"), name="job")
        environment = {"PATH": "/usr/bin:/bin"}
        return local.request(spec, cwd=tmp_path, environment=environment, python=sys.executable) | changes

    return make


@pytest.fixture
def started(tmp_path):
    """How often a program of `ask` was started."""
    return lambda: len((tmp_path / "starts").read_text().splitlines()) if (tmp_path / "starts").exists() else 0


class TestLocalExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, folder):
        return local.LocalExecutor(folder)

    @pytest.fixture
    def succeeding(self, ask):
        return ask(f"print(*{LINES}, sep='\\n')")

    @pytest.fixture
    def failing(self, ask):
        return ask("raise SystemExit(3)")

    @pytest.fixture
    def endless(self, ask):
        return ask("import time; print('line 1'); time.sleep(3600)")

    @pytest.fixture
    def held(self, ask, tmp_path):
        go = tmp_path / "go"
        wait = f"import os, time\nprint('line 1')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        return ask(f"{wait}print(*{LINES[1:]}, sep='\\n')"), go.touch

    @pytest.fixture
    def starts(self, started):
        return lambda handle: started()
