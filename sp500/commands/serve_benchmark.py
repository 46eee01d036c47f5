"""`sp500 serve NAME --benchmark`: what replicas on Ray buy, next to one plain process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from os import environ
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psutil
import requests

from sp500.commands.serve import KEY
from sp500.errors import SP500Error
from sp500.machine.memory import tree_pss_bytes
from sp500.serving import load

CLIENTS = (1, 8, 32)
SERVERS: dict[str, list[str]] = {
    "plain": [],
    "Ray Serve, 1 replica": ["--on", "ray", "--replicas", "1"],
    "Ray Serve, 2 replicas": ["--on", "ray", "--replicas", "2"],
}


class Server(NamedTuple):
    """A program that answers."""

    url: str
    process: psutil.Process
    ready_seconds: float

    def cpu_seconds(self) -> float:
        """Of it and its children, as far as they still run."""
        return sum(sum(one.cpu_times()[:2]) for one in (self.process, *self.process.children(recursive=True)))


def measure(runs: Path, name: str, seconds: float) -> list[dict[str, Any]]:
    """A row per server, path and number of clients. Raises SP500Error where a server does not start."""
    rows = []
    for kind, flags in SERVERS.items():
        with _started([name, "--runs-dir", str(runs), *flags]) as server:
            for path, body in _bodies(server.url).items():
                load.load(server.url + path, body, clients=1, seconds=1.0)  # what is made at the first request
                for clients in CLIENTS:
                    before = server.cpu_seconds()
                    found = load.load(server.url + path, body, clients=clients, seconds=seconds)
                    cpu = server.cpu_seconds() - before
                    rows.append(
                        {
                            "server": kind,
                            "path": path,
                            "clients": clients,
                            **asdict(found),
                            "cpu_ms_per_request": 1e3 * cpu / max(found.requests, 1),
                            "memory_bytes": tree_pss_bytes(server.process.pid),
                            "ready_seconds": server.ready_seconds,
                        }
                    )
    return rows


def text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as lines."""
    columns = ("clients", 8), ("req/s", 9), ("p50 ms", 9), ("p99 ms", 9), ("CPU ms", 8), ("MiB", 7), ("failed", 8)
    lines = [f"{'server':<22}{'path':<14}" + "".join(f"{name:>{width}}" for name, width in columns)]
    lines += [
        f"{row['server']:<22}{row['path']:<14}{row['clients']:>8}{row['per_second']:>9.0f}{row['p50_ms']:>9.2f}"
        f"{row['p99_ms']:>9.2f}{row['cpu_ms_per_request']:>8.2f}{row['memory_bytes'] / 2**20:>7.0f}{row['failed']:>8}"
        for row in rows
    ]
    ready = {row["server"]: row["ready_seconds"] for row in rows}
    return "\n".join([*lines, *(f"{name}: ready after {seconds:.1f} s" for name, seconds in ready.items())])


@contextmanager
def _started(words: list[str]) -> Iterator[Server]:
    """`sp500 serve` with these words on a free port, until the block ends."""
    argv = [sys.executable, "-m", "sp500.cli", "serve", *words, "--port", "0"]
    plain = {name: value for name, value in environ.items() if name != KEY}
    begun = time.perf_counter()
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=plain) as process:  # noqa: S603
        try:
            assert process.stderr is not None
            said = list[str]()
            for line in process.stderr:
                said.append(line)
                if line.startswith("http://"):
                    break
            else:
                raise SP500Error(f"sp500 serve {' '.join(words)} did not start: {''.join(said[-5:]).strip()}")
            # A full pipe would stop the server.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            url = said[-1].split()[0]
            requests.get(f"{url}/readyz", timeout=120).raise_for_status()
            yield Server(url, psutil.Process(process.pid), time.perf_counter() - begun)
        finally:
            process.send_signal(signal.SIGTERM)


def _bodies(url: str) -> dict[str, dict[str, Any]]:
    """A body for each path that the model answers."""
    tickers = requests.get(f"{url}/v1/prices", timeout=120).json()["tickers"]
    schemas = requests.get(f"{url}/openapi.json", timeout=120).json()["components"]["schemas"]
    bodies: dict[str, dict[str, Any]] = {"/v1/windows": schemas["WindowsBody"]["example"]}
    if tickers:
        ticker = quote(tickers[0], safe="")
        bodies["/v1/forecast"] = requests.get(f"{url}/v1/prices/{ticker}", timeout=120).json()
    return bodies
