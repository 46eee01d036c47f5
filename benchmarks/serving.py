"""Compare `sp500 serve` with bare FastAPI, BentoML and LitServe: the same weights, requests and clients, in one run.

    python benchmarks/serving.py --seconds 8 --clients 1 8 32     # about 3 minutes, more the first time

Each server runs alone, with one worker, one torch thread and no access log, and has to give the answer of the run
before it is loaded. BentoML and LitServe do not install together with the project. Each gets a virtual environment in
`--environments`, which is used again. The clients share the processors with the server.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import requests
import torch
from pydantic import JsonValue
from torch import nn

import sp500
from sp500.errors import SP500Error
from sp500.machine.memory import tree_cpu_seconds, tree_pss_bytes
from sp500.serving.load import load

READY_SECONDS, STOP_SECONDS = 120.0, 15.0
CACHE = Path("~/.cache/sp500/serving-benchmark").expanduser()
# An empty key: `sp500 serve` asks for none. BentoML would report its use to its makers.
VARIABLES = {"SP500_API_KEY": "", "BENTOML_DO_NOT_TRACK": "True", "OMP_NUM_THREADS": "1"}

MODEL = """
import torch
def load_model():
    torch.set_num_threads(1)
    return torch.load("model.pt", weights_only=False)

@torch.inference_mode()
def answer(model, x):
    return {"outputs": model(torch.tensor(x)).tolist()}
"""
# `async def`: the model runs in the event loop, which costs less here than a thread.
FASTAPI = """
from fastapi import FastAPI
from model import answer, load_model
from pydantic import BaseModel
app, model = FastAPI(), load_model()
class Windows(BaseModel):
    x: list[list[list[float]]]

@app.post("/v1/windows")
async def windows(body: Windows):
    return answer(model, body.x)
"""
BENTOML = """
import bentoml
from model import answer, load_model

@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Windows:
    def __init__(self):
        self.model = load_model()
    @bentoml.api(route="/v1/windows")
    def windows(self, x: list[list[list[float]]]) -> dict:
        return answer(self.model, x)
"""
LITSERVE = """
import litserve, sys
from model import answer, load_model

class Windows(litserve.LitAPI):
    def setup(self, device):
        self.model = load_model()
    def predict(self, request):
        return answer(self.model, request["x"])
if __name__ == "__main__":
    server = litserve.LitServer(Windows(api_path="/v1/windows"), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
"""


class Server(NamedTuple):
    """One way to serve. Its command is `python`, the words and the port."""

    name: str
    words: str
    source: str = ""
    package: str = ""
    """Pinned package, in an environment of its own. Empty: the environment of the project."""


SERVERS = (
    Server("sp500 serve", "-m sp500.cli serve small --runs-dir runs --port"),
    Server(f"FastAPI {version('fastapi')}", "-m uvicorn server:app --no-access-log --port", FASTAPI),
    Server("BentoML 1.4.39", "-m bentoml serve server:Windows --host 127.0.0.1 --port", BENTOML, "bentoml==1.4.39"),
    Server("LitServe 0.2.19", "server.py", LITSERVE, "litserve==0.2.19"),
)
COLUMNS = ("server", "clients", "per_second", "p50_ms", "p99_ms", "cpu_ms", "memory_mib", "failed", "load")


def train_run(folder: Path) -> tuple[dict[str, JsonValue], np.ndarray]:
    """Train `runs/small` and write its layers as `model.pt`; return a body and the outputs that it must get."""
    sp500.train(name="small", runs_dir=folder / "runs", model={"kind": "mlp"}, train={"epochs": 3})
    predictor = sp500.Predictor(folder / "runs" / "small")
    layers = [layer for layer in predictor.model.modules() if isinstance(layer, nn.Linear | nn.ReLU)]
    torch.save(nn.Sequential(nn.Flatten(), *layers).eval(), folder / "model.pt")
    (folder / "model.py").write_text(MODEL)
    return {"x": predictor.recipe.test_input.numbers.tolist()}, predictor.recipe.test_output.numbers


def install_package(package: str, environments: Path) -> Path:
    """Return the Python of the environment with this package. Raises SP500Error if it does not install."""
    folder = environments / package.replace("==", "-")
    python, marker, wanted = folder / "bin" / "python", folder / "installed.txt", f"{package} torch==2.13.0 numpy"
    if marker.exists() and marker.read_text() == wanted:
        return python
    print(f"Installing {package} into {folder} ...", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    argv = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SP500Error(f"{package} does not install: {' '.join(done.stderr.split()[-40:])}")
    marker.write_text(wanted)
    return python


@contextmanager
def start_server(server: Server, python: Path, folder: Path) -> Iterator[tuple[str, psutil.Popen]]:
    """Run a server on a free port, and end all its processes with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "server.py").write_text(server.source)
    argv = [str(python), *server.words.split(), str(port)]
    variables = os.environ | VARIABLES | {"BENTOML_HOME": str(folder)}
    with (folder / "server.log").open("w") as log:
        process = psutil.Popen(argv, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}/v1/windows", process
    finally:
        tree = (process, *(process.children(recursive=True) if process.is_running() else ()))
        for member in tree:  # some servers end their children, others leave them
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                member.terminate()
                member.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what SIGTERM did not end, and what lost its parent before


def check_answer(url: str, process: psutil.Popen, log: Path, body: dict[str, JsonValue], expected: np.ndarray) -> None:
    """Wait for the first answer. Raises SP500Error if the server ends or gives other outputs than the run."""
    end, outputs = time.monotonic() + READY_SECONDS, None
    while outputs is None:
        if process.poll() is not None or time.monotonic() > end:
            raise SP500Error(f"does not start: {' '.join(log.read_text().split()[-40:])}")
        time.sleep(0.2)
        with suppress(requests.RequestException):
            outputs = requests.post(url, json=body, timeout=READY_SECONDS).json().get("outputs")
    if not np.allclose(outputs, expected, rtol=1e-4, atol=1e-6):
        raise SP500Error(f"answers {outputs}: expected {expected.tolist()}")


def measure_server(
    server: Server, folder: Path, flags: argparse.Namespace, body: dict[str, JsonValue], expected: np.ndarray
) -> Iterator[dict[str, object]]:
    """Yield a row per number of clients. Raises SP500Error if the server fails to install, start or answer."""
    python = install_package(server.package, flags.environments) if server.package else Path(sys.executable)
    with start_server(server, python, folder) as (url, process):
        check_answer(url, process, folder / "server.log", body, expected)
        load(url, body, clients=1, seconds=1.0)  # the first requests are slower
        for clients in flags.clients:
            before = tree_cpu_seconds(process.pid)
            times = load(url, body, clients=clients, seconds=flags.seconds)
            cpu_ms = 1e3 * (tree_cpu_seconds(process.pid) - before) / max(times["requests"], 1)
            figures = server.name, clients, times["per_second"], times["p50_ms"], times["p99_ms"], cpu_ms
            others = tree_pss_bytes(process.pid) / 2**20, times["failed"], os.getloadavg()[0]
            yield dict(zip(COLUMNS, figures + others, strict=True))


def format_line(cells: Iterable[object]) -> str:
    """Return one line of the table."""
    first, *others = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"{first:<16}" + "".join(f"{cell:>11}" for cell in others)


def main() -> None:
    """Print a row per server and number of clients, or the reason for a missing one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load (default: 8)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="clients at once (default: 1 8 32)")
    parser.add_argument("--environments", type=Path, default=CACHE, help=f"of BentoML and LitServe (default: {CACHE})")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    flags, rows = parser.parse_args(), list[dict[str, object]]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers as well
    table = sys.stderr if flags.json else sys.stdout
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        body, expected = train_run(Path(temporary))
        print(format_line(COLUMNS), file=table, flush=True)
        for server in SERVERS:
            try:
                for row in measure_server(server, Path(temporary), flags, body, expected):
                    rows.append(row)
                    print(format_line(row.values()), file=table, flush=True)
            except (SP500Error, OSError, psutil.Error, subprocess.SubprocessError) as error:
                rows.append({"server": server.name, "reason": str(error)})
                print(f"{server.name:<16} {error}", file=table, flush=True)
    if flags.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
