"""Runs as users make them, syncs in processes of their own, what MLflow holds, and a real server of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import forks
import requests

ROOT = Path(__file__).parents[2]
LONG = ("--train.epochs", "40", "--train.early-stop-patience", "0", "--model.hidden", "128")
SMALL = ("--task", "synthetic", "--train.epochs", "2")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(script: str, folder: Path, name: str, *words: str) -> list[str]:
    """An entry script and its arguments."""
    return [str(ROOT / "experiments" / f"{script}.py"), "--runs-dir", str(folder), "--name", name, *words]


def run(script: str, folder: Path, name: str, *words: str, code: int = 0) -> None:
    done = forks.run(command(script, folder, name, *words))
    assert done.returncode == code, done.stderr


def until(condition: Callable[[], object], process: forks.Script, pause: float = 0.2) -> None:
    """Wait for a condition while a process lives."""
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(pause)


def epochs(folder: Path) -> int:
    path = folder / "epochs.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def cut(folder: Path, name: str, at: int, *words: str, end: signal.Signals = signal.SIGKILL) -> None:
    """A training run that is ended by a signal once it has done so many epochs."""
    process = forks.Script(command("train", folder, name, *LONG, *words))
    until(lambda: epochs(folder / name) >= at, process, 0.02)
    process.send_signal(end)
    process.wait(60)


def sync_command(runs: Path, uri: object, *words: str) -> list[str]:
    return ["sp500", "mlflow", "sync", "--runs-dir", str(runs), "--uri", str(uri), *words]


def sync(runs: Path, uri: object, *words: str, code: int = 0) -> dict[str, Any]:
    """What a sync prints with --json, in a process of its own, since it has its own signals and environment."""
    done = forks.run(sync_command(runs, uri, "--json", *words))
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Database:
    """What MLflow holds, read without it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=60)) as database:
            return database.execute(query, values).fetchall()

    def runs(self, stage: str = "active") -> dict[str, str]:
        """Names by id."""
        return dict(self.rows("select run_uuid, name from runs where lifecycle_stage = ?", stage))

    def count(self) -> int:
        """All runs so far; 0 before there is a database."""
        try:
            return int(self.rows("select count(*) from runs")[0][0])
        except sqlite3.Error:
            return 0

    def of(self, table: str, run: str) -> dict[str, Any]:
        """Parameters or tags of a run."""
        return dict(self.rows(f"select key, value from {table} where run_uuid = ?", run))

    def points(self, run: str) -> list[tuple[str, int, float]]:
        """Key, step and value of every point of a run."""
        return self.rows("select key, step, value from metrics where run_uuid = ?", run)

    def status(self, run: str) -> str:
        return str(self.rows("select status from runs where run_uuid = ?", run)[0][0])

    def parents(self) -> dict[str, str]:
        """Ids of runs without a parent, by name. Fails if a name is there twice."""
        found = [(name, run) for run, name in self.runs().items() if "mlflow.parentRunId" not in self.of("tags", run)]
        assert len(dict(found)) == len(found)
        return dict(found)

    def children(self, parent: str) -> dict[str, str]:
        """Ids of a run's children, by name. Fails if a name is there twice."""
        found = [
            (name, run) for run, name in self.runs().items() if self.of("tags", run).get("mlflow.parentRunId") == parent
        ]
        assert len(dict(found)) == len(found)
        return dict(found)


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[Database]:
    """A real MLflow server on a port of this machine, with its database and artifacts in a folder."""
    folder.mkdir(exist_ok=True)
    database = folder / "server.db"
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    script = folder / "server.py"
    script.write_text("import os, sys\nos.setsid()\nfrom mlflow.cli import cli\ncli(sys.argv[1:])\n")
    process = forks.Script([str(script), "server", *words, *store], cwd=folder, env={**ENVIRONMENT, **quiet})

    def answers() -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).ok
        except requests.RequestException:
            return False

    try:
        until(answers, process)
        yield Database(database)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
