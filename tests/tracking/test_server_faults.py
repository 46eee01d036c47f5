"""A server that answers 500, hangs, or is gone; then a real one at the same address."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tracking_runs import ENVIRONMENT, SMALL, command, free_port, mlflow_server, sync, sync_command, until

IMPORTED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert not end.code, end
print(sorted(name for name in sys.modules if name.partition(".")[0] == "mlflow" or name.startswith("sp500.tracking")))
"""


class Broken(BaseHTTPRequestHandler):
    """Answers 500 to everything."""

    def do_GET(self) -> None:
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def broken(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hanging(port: int) -> Iterator[None]:
    """Takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", port), backlog=64):
        yield


def test_sync_names_what_is_missing_and_the_next_one_completes_it(few_runs: Path, tmp_path: Path) -> None:
    port = free_port()
    for fault in (broken, hanging, lambda port: nullcontext()):
        with fault(port):
            found = sync(few_runs, f"http://127.0.0.1:{port}", code=1)
        assert (found["runs"], found["missing"].keys()) == ([], {"killed", "ok", "search"})
    with mlflow_server(tmp_path / "server", port) as database:
        found = sync(few_runs, f"http://127.0.0.1:{port}")
        assert (found["missing"], {one["state"] for one in found["runs"]}) == ({}, {"new"})
        assert database.parents().keys() == {"killed", "ok", "search"}
        assert len(database.children(database.parents()["search"])) == 18
        ok = database.parents()["ok"]
        kept = tmp_path / "server" / "artifacts" / "1" / ok / "artifacts"
        assert (kept / "record.json").read_bytes() == (few_runs / "ok" / "record.json").read_bytes()
        assert {one["state"] for one in sync(few_runs, f"http://127.0.0.1:{port}")["runs"]} == {"same"}


def test_server_that_goes_away_in_a_sync_leaves_the_rest_to_the_next(few_runs: Path, tmp_path: Path) -> None:
    port = free_port()
    with mlflow_server(tmp_path / "server", port) as database:
        process = subprocess.Popen(
            sync_command(few_runs, f"http://127.0.0.1:{port}"), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        until(lambda: database.count() >= 5, process)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "missing in MLflow" in said
    with mlflow_server(tmp_path / "server", port) as database:
        sync(few_runs, f"http://127.0.0.1:{port}")
        assert database.parents().keys() == {"killed", "ok", "search"}
        points = database.rows("select run_uuid, key, step from metrics where run_uuid in (select run_uuid from runs "
                               "where lifecycle_stage = 'active')")  # fmt: skip
        assert len(set(points)) == len(points)


def test_training_imports_nothing_of_it_and_ends_well_next_to_a_server_that_hangs(tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with hanging(port):
        follower = subprocess.Popen(
            sync_command(tmp_path, uri, "--follow"), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        words = command("train", tmp_path, "next", *SMALL)[1:]
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, *words],
            env={**ENVIRONMENT, "MLFLOW_TRACKING_URI": uri},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"
        assert follower.stdout is not None
        while "missing in MLflow: next" not in (line := follower.stdout.readline()):
            assert follower.poll() is None, line
        follower.terminate()
        assert follower.wait(60) == 143


def test_database_that_cannot_be_opened_is_a_server_that_is_gone(few_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "store" / "mlflow.db").mkdir(parents=True)
    assert len(sync(few_runs, tmp_path / "store", code=1)["missing"]) == 3
