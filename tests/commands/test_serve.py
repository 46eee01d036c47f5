"""`sp500 serve` as a program: it answers, says what is wrong, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import forks
import pytest
import requests

import sp500
from sp500.cli import main
from sp500.formatting import http_address
from sp500.serving import connections


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SP500_API_KEY", raising=False)
    return tmp_path / "runs"


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    return capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_server_answers_until_it_is_told_to_end(runs: Path, number: signal.Signals) -> None:
    sp500.train(name="m1", task="synthetic", synthetic={"samples": 300}, train={"epochs": 1})
    process = forks.Script(["sp500", "serve", "m1", "--port", "0"], env={**os.environ, "SP500_API_KEY": "secret"})
    try:
        end = time.monotonic() + 120
        while not (said := process.written("stderr")).endswith("\n"):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+) answers with run m1; API: /docs\n", said)
        assert found, said
        # The port listens before the line is written, so a request waits and is not refused.
        assert requests.get(f"{found[1]}/readyz", timeout=120).json()["run"] == "m1"
        assert requests.get(f"{found[1]}/v1/models", timeout=60).status_code == 401
    finally:
        process.send_signal(number)
    assert process.wait(120) == 0
    assert process.written("stderr") == said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "::"])
def test_address_that_is_printed_has_host_and_port(host: str) -> None:
    parts = urlsplit(http_address(host, 8124))
    assert (parts.scheme, parts.hostname, parts.port) == ("http", host, 8124)


def test_address_that_others_reach_needs_a_key(runs: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        assert "set SP500_API_KEY or give --key-file FILE" in refused(capfd, "--host", host)
    (tmp_path / "key").write_text("\n")
    assert "is empty" in refused(capfd, "--host", "0.0.0.0", "--key-file", "key")
    assert "cannot be read" in refused(capfd, "--key-file", "nothing")


def test_parts_of_an_answer_do_not_wait_for_each_other() -> None:
    with connections.listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_port_that_is_taken_is_named(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: cannot listen there (Address already in use)" in refused(capfd, "--port", port)


def test_run_that_is_none_is_named(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "m2: no run in runs, and no model (models: none)" in refused(capfd, "m2", "--port", "0")
    (runs / "m3").mkdir(parents=True)
    assert "holds no run of train or tune" in refused(capfd, "m3", "--port", "0")


def test_missing_package_is_told_with_its_extra_before_torch_is_imported(runs: Path) -> None:
    code = "import sys; sys.modules['fastapi_offline'] = None\nfrom sp500.commands.serving import serve\n"
    code += "code = serve.main([]); assert 'torch' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "ConfigError: fastapi_offline is not installed: pip install 'sp500[serve]'\n",
    )
