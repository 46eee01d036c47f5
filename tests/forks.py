"""Processes forked from one server that has imported torch and this package: real ones, without seconds of imports.

What runs on Ray needs `subprocess`, since Ray reads RAY_AUTH_MODE once; so does what a clean import is about.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported, and it would start a thread
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("pandas", "sklearn.metrics", "scipy.stats", "optuna", "exchange_calendars", "matplotlib.figure"),
        *("torch", "torch.distributed.fsdp", "safetensors.torch", "pyarrow.parquet", "pyarrow.fs"),
        "torch._dynamo",  # DDP and FSDP import it when they wrap their first model, a second in every rank
        *("sp500.distributed.worker", "sp500.tasks.catalog", "sp500.training.checkpoint", "sp500.data.shards.writer"),
        *("sp500.studies.train", "sp500.studies.search_steps", "sp500.studies.scale", "sp500.studies.walk_forward"),
        *("sp500.report.page", "sp500.console.entry", "sp500.commands.submission.submit", "sp500.commands.jobs.status"),
        *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.artifact.local_artifact_repo"),
        *("sp500.commands.mlflow_sync", "sp500.tracking.mirror", "sp500.serving.app"),
        # What those import only when they are called: half of the seconds of a small training.
        *("typeguard", "tyro._backends._tyro_backend", "rich._emoji_codes", "torch._inductor"),
        *("torch.onnx", "alembic.config", "sqlalchemy.dialects.sqlite", "optuna.storages._rdb.models"),
        *("optuna.importance._fanova", "sklearn.linear_model", "sklearn.neighbors", "ray.dag.compiled_dag_node"),
        "sp500.studies.walk_forward_folds",
        *("sp500.report.terminal", "sp500.cli", "sp500.commands.cluster.deploy", "uvicorn"),
    ]
)


def run_group(world: int, target: Callable[..., None], *arguments: object) -> None:
    """Call `target(rank, *arguments)` in `world` processes, and expect each to end well.

    The others end with the first that fails: they may wait for it, half an hour in a collective of torch.
    """
    ranks = [CONTEXT.Process(target=target, args=(rank, *arguments)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    try:
        running = {rank.sentinel for rank in ranks}
        while running and not any(rank.exitcode for rank in ranks):
            running -= set(connection.wait(running))
        assert [rank.exitcode for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()


class Script:
    """A running Python script, or a verb of `sp500`: `argv` as in a shell. Its streams go to files."""

    def __init__(self, argv: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start it with `env` as its whole environment (by default this process's)."""
        self.argv, self._folder = argv, tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        settings = (argv, str(cwd or Path.cwd()), dict(os.environ if env is None else env), self._streams)
        self._process: BaseProcess = CONTEXT.Process(target=_become, args=settings)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, None while it runs; minus the number of the signal that ended it."""
        return self._process.exitcode

    def wait(self, timeout: float = 500) -> int:
        """The exit code once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.argv, timeout)
        return self._process.exitcode

    def written(self, stream: Literal["stdout", "stderr"] = "stdout") -> str:
        """What it has written so far."""
        path = Path(self._folder.name, stream)
        return path.read_text() if path.exists() else ""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def finish(self, timeout: float = 500) -> subprocess.CompletedProcess[str]:
        """Wait for its end; exit code and text of both streams."""
        code = self.wait(timeout)
        return subprocess.CompletedProcess(self.argv, code, self.written(), self.written("stderr"))


def run(
    argv: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run a script or a verb to its end, as `subprocess.run` with `capture_output` and `text` would."""
    return Script(argv, cwd=cwd, env=env).finish(timeout)


def _become(argv: list[str], cwd: str, env: dict[str, str], streams: list[Path]) -> None:
    for number, path in enumerate(streams, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for inherited in list(weakref.finalize._registry):
        inherited.atexit = False  # such as torch's, which take its operators apart
    sys.argv = argv
    try:
        if argv[0] == "sp500":
            from sp500.cli import main

            sys.exit(main(argv[1:]))
        sys.path.insert(0, str(Path(argv[0]).parent))
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing leaves them out
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.flush()
