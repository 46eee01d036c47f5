"""The same application on Ray Serve: the same answers, and a replica that is killed costs no more than its requests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from http_server import Client, body, serving

from sp500.config import DataConfig
from sp500.data.sources import load

LONG = 300.0


GATED = """
import sys, urllib.request
from ray import serve
from sp500.commands.serving.application import make
from sp500.distributed import session
from sp500.distributed.serve import application
from functools import partial
from pathlib import Path

runs, port = Path(sys.argv[1]), int(sys.argv[2])
with session.connect():
    serve.start(http_options={"host": "0.0.0.0", "port": port})
    serve.run(application(partial(make, runs, "returns", "secret", None, False), gate=port), route_prefix="/")
    print("first answer:", urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status)
    serve.shutdown()
"""


@pytest.fixture(scope="module")
def on_ray(served_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, int]]:
    """A client of two replicas, and the process that started Ray for them."""
    argv = [sys.executable, "-m", "sp500.cli", "serve", "returns", "--on", "ray", "--port", "0"]
    argv += ["--runs-dir", str(served_runs)]
    log = tmp_path_factory.mktemp("on_ray") / "stderr"
    answers = r"http://127\.0\.0\.1:(\d+) answers with run returns, 2 replicas"
    with log.open("w") as file, subprocess.Popen(argv, stderr=file) as process:
        try:
            end = time.monotonic() + LONG
            while not (found := re.search(answers, log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield Client(int(found[1])), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0


def test_two_hundred_answers_are_those_of_one_process(served_runs, on_ray):
    client, _ = on_ray
    prices = load(DataConfig(tickers=("AAPL", "KO"), start="2021-01-01")).close
    bodies = [body(prices[ticker].iloc[first : first + 80]) for first in range(100) for ticker in prices]
    with serving(served_runs, "returns") as (plain, *_):
        for one in bodies:
            answer = client.post("/v1/forecast", one)
            assert answer.status_code == 200, answer.text
            assert answer.content == plain.post("/v1/forecast", one).content


def test_errors_and_ids_pass_through_the_proxy(on_ray):
    client, _ = on_ray
    assert client.post("/v1/forecast", {}).status_code == 422
    answer = client.get("/readyz", headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
    head = client.session.head(client.url + "/readyz", timeout=LONG)
    form = client.session.post(client.url + "/v1/forecast", data={"a": "b"}, timeout=LONG)
    assert (head.status_code, head.content, form.status_code) == (200, b"", 415)
    assert client.get("/healthz").json() == {"status": "ok"}  # nothing is left on the connection


def test_only_this_machine_can_ask(on_ray):
    client, _ = on_ray
    port = int(client.url.rpartition(":")[2])
    held = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == port]
    assert {one.laddr.ip for one in held} == {"127.0.0.1"}


def test_killed_replica_fails_no_more_than_what_it_was_answering(on_ray):
    client, pid = on_ray
    port = int(client.url.rpartition(":")[2])
    request = body(load(DataConfig(tickers=("KO",))).close["KO"].iloc[-80:])
    done, failed, good = threading.Event(), [0] * 4, [0] * 4

    def ask(number: int) -> None:
        mine = Client(port)
        while not done.is_set():
            if mine.post("/v1/forecast", request).status_code == 200:
                good[number] += 1
            else:
                failed[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        workers = psutil.Process(pid).children(recursive=True)
        replicas = [one for one in workers if "ServeReplica" in f"{one.name()} {' '.join(one.cmdline())}"]
        assert len(replicas) == 2
        replicas[0].kill()
        before, end = sum(good), time.monotonic() + LONG
        while sum(good) < before + 100:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert max(failed) <= 1


def test_application_with_a_gate_runs_when_its_proxies_answer(served_runs, ray_cluster):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    argv = [sys.executable, "-c", GATED, str(served_runs), port]
    joined = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(argv, env=joined, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "first answer: 200" in done.stdout, done.stderr[-2000:]
