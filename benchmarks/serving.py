"""The servers: ours in one process and on Ray, bare FastAPI, BentoML and LitServe, with the same weights and requests.

Each runs alone, with one worker, one torch thread and no access log, and has to give the answer of the run before it is
loaded. BentoML and LitServe do not install together with the project: each gets a virtual environment in the temporary
folder, which is used again. The clients share the processors with the server.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import requests
import torch
from torch import nn

import sp500
from benchmarks.load import load
from benchmarks.turns import PEERS, Arm, Figures, Part, Table, end_processes, environment
from sp500.credentials import API_KEY
from sp500.errors import SP500Error
from sp500.jobs.manifests.rayservice import FAST_PROXY
from sp500.machine.memory import tree_pss_bytes

READY_SECONDS, STOP_SECONDS = 120.0, 15.0
ENVIRONMENTS = Path(tempfile.gettempdir()) / "sp500-benchmark-environments"
CLIENTS = (1, 16)
KEY = secrets.token_urlsafe(16)
"""Needed by ours on Ray, where HAProxy listens on all addresses. All clients send it, and ours always checks it."""


class Server(NamedTuple):
    """One way to serve. Its command is `python`, the words and the port."""

    name: str
    words: str
    package: str = ""
    """Pinned package, in an environment of its own. Empty: the environment of the project."""
    variables: Mapping[str, str] = {}


OURS = "sp500 serve"
COMMAND = "-m sp500.cli serve small --runs-dir runs {} --port"
SERVERS = (
    Server(OURS, COMMAND.format("")),
    Server(f"FastAPI {version('fastapi')}", "-m uvicorn serve_fastapi:app --no-access-log --port"),
    Server("BentoML 1.4.40", "-m bentoml serve serve_bentoml:Windows --host 127.0.0.1 --port", "bentoml==1.4.40"),
    Server("LitServe 0.2.19", "serve_litserve.py", "litserve==0.2.19"),
    Server(f"{OURS}, 1 replica on Ray", COMMAND.format("--on ray --replicas 1")),
    Server(f"{OURS}, 2 replicas and HAProxy", COMMAND.format("--on ray --replicas 2"), variables=FAST_PROXY),
)


def serve(base: Path, *, quick: bool) -> Part:
    """Return all servers. Each is loaded by one client and by several."""
    body, expected = _train(base)
    seconds, tables = 1.0 if quick else 8.0, tuple(_label(count) for count in CLIENTS)
    arms = [
        Arm(server.name, tables, _measure(server, base, seconds, body, expected), ours=server.name.startswith(OURS))
        for server in SERVERS
    ]
    return Part(arms, [Table(name, "per_second", OURS, higher_is_better=True) for name in tables])


def _label(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _train(base: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Train `runs/small` and write its layers as `model.pt`; return a body and the outputs that it must get."""
    sp500.train(name="small", runs_dir=base / "runs", model={"kind": "mlp"}, train={"epochs": 3})
    predictor = sp500.Predictor(base / "runs" / "small")
    layers = [layer for layer in predictor.model.modules() if isinstance(layer, nn.Linear | nn.ReLU)]
    torch.save(nn.Sequential(nn.Flatten(), *layers).eval(), base / "model.pt")
    return {"x": predictor.recipe.test_input.numbers.tolist()}, predictor.recipe.test_output.numbers


def _measure(
    server: Server, base: Path, seconds: float, body: dict[str, Any], expected: np.ndarray
) -> Callable[[Path], Mapping[str, Figures]]:
    def measure(folder: Path) -> Mapping[str, Figures]:
        """Return figures per number of clients. Raises SP500Error if it fails to install, start or answer."""
        python = _install(server.package) if server.package else Path(sys.executable)
        for name in ("model.pt", "runs"):
            (folder / name).symlink_to(base / name)
        for source in PEERS.glob("serve*.py"):
            shutil.copy(source, folder)
        with _start(server, python, folder) as (url, process):
            ready = _check_answer(url, process, folder / "server.log", body, expected)
            load(url, body, clients=1, seconds=1.0, key=KEY)  # the first requests are slower
            return {_label(clients): _load(url, process, clients, seconds, body) | ready for clients in CLIENTS}

    return measure


def _load(url: str, process: psutil.Popen, clients: int, seconds: float, body: dict[str, Any]) -> Figures:
    before = _cpu_seconds(process)
    times = load(url, body, clients=clients, seconds=seconds, key=KEY)
    if times.failed:
        raise SP500Error(f"{times.failed} of {times.requests} requests of {clients} clients failed")
    cpu_ms = 1e3 * (_cpu_seconds(process) - before) / times.requests
    named = {"per_second": times.per_second, "p50_ms": times.p50_ms, "p99_ms": times.p99_ms}
    return {**named, "cpu_ms": cpu_ms, "memory_mib": tree_pss_bytes(process.pid) / 2**20}


def _cpu_seconds(process: psutil.Popen) -> float:
    """Return user and system seconds of a server's processes that still run."""
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(member.cpu_times()[:2])
    return total


def _install(package: str) -> Path:
    """Return the Python of the environment with this package. Raises SP500Error if it does not install."""
    folder, wanted = ENVIRONMENTS / package.replace("==", "-"), [package, f"torch=={version('torch')}", "numpy"]
    python, marker = folder / "bin" / "python", folder / "installed.txt"
    if marker.exists() and marker.read_text().split() == wanted:
        return python
    print(f"Installing {package} into {folder} ...", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    argv = [str(python), "-m", "pip", "install", "--quiet", *wanted]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SP500Error(f"{package} does not install: {' '.join(done.stderr.split()[-40:])}")
    marker.write_text(" ".join(wanted))
    return python


@contextmanager
def _start(server: Server, python: Path, folder: Path) -> Iterator[tuple[str, psutil.Popen]]:
    """Run a server on a free port, and end all its processes with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [str(python), *server.words.split(), str(port)]
    variables = environment(folder) | dict(server.variables) | {API_KEY: KEY, "BENTOML_HOME": str(folder)}
    with (folder / "server.log").open("w") as log:
        process = psutil.Popen(argv, cwd=folder, env=variables, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/v1/windows", process
    finally:
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process.terminate()
            process.wait(STOP_SECONDS)
        end_processes(folder)  # some servers end their children, others leave them


def _check_answer(
    url: str, process: psutil.Popen, log: Path, body: dict[str, Any], expected: np.ndarray
) -> dict[str, float]:
    """Return the seconds to the first answer. Raises SP500Error if the server ends or gives other outputs."""
    started, outputs = time.monotonic(), None
    while outputs is None:
        if process.poll() is not None or time.monotonic() > started + READY_SECONDS:
            raise SP500Error(f"does not start: {' '.join(log.read_text().split()[-40:])}")
        time.sleep(0.2)
        with suppress(requests.RequestException):
            headers = {"authorization": f"Bearer {KEY}"}
            outputs = requests.post(url, json=body, timeout=READY_SECONDS, headers=headers).json().get("outputs")
    if np.shape(outputs) != expected.shape or not np.allclose(outputs, expected, rtol=1e-4, atol=1e-6):
        raise SP500Error(f"answers {outputs}: expected {expected.tolist()}")
    return {"ready_seconds": time.monotonic() - started}
