"""`sp500 serve NAME --benchmark`: what replicas on Ray buy, next to one plain process; kept as a run for the report."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from os import environ
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import requests

from sp500.credentials import API_KEY
from sp500.errors import ConfigError, SP500Error
from sp500.formatting import fixed
from sp500.jobs.manifests.rayservice import FAST_PROXY
from sp500.machine.memory import tree_cpu_seconds, tree_pss_bytes
from sp500.runs.record import make_record
from sp500.runs.results import ServeRow
from sp500.runs.store import Run, RunStore
from sp500.serving import load
from sp500.serving.predictor import Predictor
from sp500.serving.registry import Registry

CLIENTS = (1, 8, 32)
READY_SECONDS = 120.0
RAY = "RAY_ADDRESS"
"""Not passed on: CPU and memory of a cluster's replicas could not be seen from here."""


class Kind(NamedTuple):
    """One way to serve."""

    name: str
    replicas: int
    fast_proxy: bool = False
    """HAProxy, as in cluster/rayservice.yaml. It listens on ports of its own on all addresses, hence with a key."""


KINDS = (
    Kind("plain", 0),
    Kind("1 replica on Ray", 1),
    Kind("1 replica on Ray with HAProxy", 1, fast_proxy=True),
    Kind("2 replicas on Ray with HAProxy", 2, fast_proxy=True),
)


class Server(NamedTuple):
    """A program that answers."""

    kind: Kind
    url: str
    key: str
    pid: int
    ready_seconds: float


def measure(runs: Path, name: str, seconds: float, *, trust_source: bool = False) -> tuple[Path, list[ServeRow]]:
    """Return a row per server, path and number of clients, and the run that keeps them.

    Raises SP500Error if a server does not start, or if another run has just used the name.
    """
    started, rows = datetime.now(UTC), list[ServeRow]()
    x = Predictor(_folder(runs, name), trust_source=trust_source).recipe.test_input.numbers
    for kind in KINDS:
        words = [name, "--runs-dir", str(runs), *(["--trust-source"] if trust_source else [])]
        with _start_server(kind, words) as server:
            for path, body in _bodies(x, server).items():
                load.load(server.url + path, body, clients=1, seconds=1.0, key=server.key)  # made at the first request
                rows += [_row(server, path, body, clients, seconds) for clients in CLIENTS]
    return _keep(runs, name, rows, started), rows


def _row(server: Server, path: str, body: dict[str, object], clients: int, seconds: float) -> ServeRow:
    before = tree_cpu_seconds(server.pid)
    times = load.load(server.url + path, body, clients=clients, seconds=seconds, key=server.key)
    return {
        "server": server.kind.name,
        "replicas": server.kind.replicas,
        "path": path,
        "clients": clients,
        **times,
        "cpu_ms_per_request": 1e3 * max(tree_cpu_seconds(server.pid) - before, 0.0) / max(times["requests"], 1),
        "memory_bytes": tree_pss_bytes(server.pid),
        "ready_seconds": server.ready_seconds,
    }


def _keep(runs: Path, name: str, rows: list[ServeRow], started: datetime) -> Path:
    """Keep the rows as a run, with the settings of the run that answered, and return its folder."""
    folder = _folder(runs, name)
    record = Run(folder).record()
    if record is None:
        raise ConfigError(f"{folder}: its record is gone")
    config = record.best_config(folder)
    with RunStore(runs).open(f"serve-{name}-{started:%Y%m%d-%H%M%S}") as run:
        run.write_config(config.model_dump(mode="json"))
        record = make_record(config, name=run.path.name, experiment="serve", arm="all", started=started, serving=rows)
        run.write_record(record)
    return run.path


def text(rows: Sequence[ServeRow]) -> str:
    """Return the rows as lines."""
    columns = ("clients", 8), ("req/s", 9), ("p50 ms", 9), ("p99 ms", 9), ("CPU ms", 8), ("MiB", 7), ("failed", 8)
    lines = [f"{'server':<31}{'path':<14}" + "".join(f"{name:>{width}}" for name, width in columns)]
    lines += [
        f"{row['server']:<31}{row['path']:<14}{row['clients']:>8}{row['per_second']:>9.0f}"
        f"{fixed(row['p50_ms']):>9}{fixed(row['p99_ms']):>9}"
        f"{row['cpu_ms_per_request']:>8.2f}{row['memory_bytes'] / 2**20:>7.0f}{row['failed']:>8}"
        for row in rows
    ]
    ready = {row["server"]: row["ready_seconds"] for row in rows}
    return "\n".join([*lines, *(f"{name}: ready after {seconds:.1f} s" for name, seconds in ready.items())])


def _folder(runs: Path, name: str) -> Path:
    """Return the folder of the run that answers under this name."""
    champion = Registry(runs).read(name).champion
    return runs / (champion.run if champion else name)


@contextmanager
def _start_server(kind: Kind, words: list[str]) -> Iterator[Server]:
    """Run `sp500 serve` with these words on a free port until the block ends."""
    on_ray = ["--on", "ray", "--replicas", str(kind.replicas)] if kind.replicas else []
    argv = [sys.executable, "-m", "sp500.cli", "serve", *words, *on_ray, "--port", "0"]
    key = secrets.token_urlsafe(16) if kind.fast_proxy else ""
    proxy = {API_KEY: key, **FAST_PROXY} if kind.fast_proxy else {}
    environment = {name: value for name, value in environ.items() if name not in {API_KEY, RAY, *FAST_PROXY}} | proxy
    start = time.perf_counter()
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603
        try:
            assert process.stderr is not None
            lines = list[str]()
            for line in process.stderr:
                lines.append(line)
                if line.startswith("http://"):
                    break
            else:
                raise SP500Error(f"sp500 serve {' '.join(words)} did not start: {''.join(lines[-5:]).strip()}")
            # A full pipe would stop the server.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            url = lines[-1].split()[0]
            _wait_until_ready(url)
            yield Server(kind, url, key, process.pid, time.perf_counter() - start)
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_until_ready(url: str) -> None:
    """Return when the model answers. Ray's proxies know of a replica a moment after it runs."""
    end = time.monotonic() + READY_SECONDS
    while (answer := requests.get(f"{url}/readyz", timeout=READY_SECONDS)).status_code != 200:
        if time.monotonic() > end:
            raise SP500Error(f"{url}/readyz answers {answer.status_code}: {answer.text[:200]}")
        time.sleep(0.2)


def _bodies(x: np.ndarray, server: Server) -> dict[str, dict[str, object]]:
    """Return a body for each path that the model answers."""
    headers = {"authorization": f"Bearer {server.key}"}
    tickers = requests.get(f"{server.url}/v1/prices", timeout=120, headers=headers).json()["tickers"]
    bodies: dict[str, dict[str, object]] = {"/v1/windows": {"x": x.tolist()}}
    if tickers:
        address = f"{server.url}/v1/prices/{quote(tickers[0], safe='')}"
        bodies["/v1/forecast"] = requests.get(address, timeout=120, headers=headers).json()
    return bodies
