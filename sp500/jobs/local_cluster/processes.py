"""A cluster of processes on this machine, which runs until `down`.

A file records each `ray start`, with its process id and start time, so that `down` ends what was started here and
nothing else, also after the terminal is gone. The file is not trusted: a folder that `up` cannot have made is never
removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

import psutil

from sp500.errors import ConfigError, ResourcesError, undo_on_error
from sp500.formatting import some
from sp500.jobs.local_cluster.plan import Node, command
from sp500.machine.disk import write_atomic
from sp500.machine.ports import find_free_port
from sp500.machine.ray_token import ray_token

PATIENCE_SECONDS = 180
GRACE_SECONDS = 10
PROCESSES = "processes.json"
FOLDER, PREFIX = Path("/tmp"), "sp500-ray-"  # noqa: S108 - made by mkdtemp; the paths of Ray's sockets must be short

log = logging.getLogger(__name__)


def up(nodes: Sequence[Node], state: Path, dashboard: int, say: Callable[[str], None]) -> None:
    """Start the nodes and wait until all are alive; the dashboard is at that port of 127.0.0.1.

    Raises ConfigError if a rehearsal is up already or the port is taken, ResourcesError for a node that does not
    come, after which nothing is left.
    """
    if _alive(state):
        raise ConfigError("a rehearsal is up already; scripts/rehearse --down ends it")
    _check_port(dashboard)
    state.mkdir(parents=True, exist_ok=True)
    # Sockets lie in there, whose paths may have 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=FOLDER))
    _save(state, folder, [])
    secret, port = ray_token(), find_free_port()
    started: list[psutil.Process] = []

    def start(node: Node, number: int, attempt: int) -> str:
        """Start a node. Returns why it is not up, if it ended before it was."""
        own = folder / f"{number}.{attempt}"
        argv = command(node, ray=Path(sys.executable).with_name("ray"), port=port, dashboard=dashboard, folder=own)
        started.append(_start(argv, node, state / f"{node.name}.log"))
        _save(state, folder, started)
        return _until(lambda: _count(dashboard, secret) >= number, started[-1], state / f"{node.name}.log")

    with undo_on_error(lambda: down(state)):
        # One after the other: nodes of one machine choose their ports by looking which are free.
        for number, node in enumerate(nodes, 1):
            if ended := start(node, number, 1):
                # Ray gives a node 30 s to register, which a busy machine may exceed; a pod would start again as well.
                say(f"{ended}\nit is started again")
                if node.head:
                    port = find_free_port()
                if ended := start(node, number, 2):
                    raise ResourcesError(ended)
            say(f"{node.name} is up: {some(node.cpus, 'CPU')}")


def down(state: Path) -> int:
    """End every process of the rehearsal, and return how many `ray start` there were. None running is not an error."""
    rehearsal = _load(state)
    if rehearsal is None:
        (state / PROCESSES).unlink(missing_ok=True)
        return 0
    folder, starts = rehearsal
    # A node's processes are its children; those of jobs name the folder that their session lies in.
    family = [child for process in starts for child in _descendants(process)]
    family += [process for process in psutil.process_iter() if _names(process, str(folder))]
    for process in [*reversed(starts), *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs({*starts, *family}, timeout=GRACE_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    (state / PROCESSES).unlink()
    return len(starts)


def _start(argv: Sequence[str], node: Node, log: Path) -> psutil.Process:
    with log.open("wb") as output:
        # A session of its own: it outlives the terminal, and Ctrl-C in it.
        process = subprocess.Popen(  # noqa: S603 - our own argv
            argv, env=_environment(node.environment), stdout=output, stderr=output, start_new_session=True
        )
    return psutil.Process(process.pid)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return a node's environment: this one without Ray's settings, with this python and ray first, and `own`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    here = str(Path(sys.executable).parent)
    fixed = {"RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
    fixed["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # all as in distributed.session
    return {**plain, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}", **own, **fixed}


def _count(dashboard: int, secret: str) -> int:
    """Return the number of nodes that the dashboard knows to be alive; 0 if it does not answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{dashboard}/nodes?view=summary", headers={"Authorization": f"Bearer {secret}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            summary = json.load(answer)["data"]["summary"]
        return sum(node["raylet"]["state"] == "ALIVE" for node in summary)
    except (OSError, HTTPException, ValueError, KeyError, TypeError):  # it starts, or another server is there
        return 0


def _until(ready: Callable[[], bool], process: psutil.Process, log: Path) -> str:
    """Wait until a node is ready. Returns why it is not, if its process ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return _describe("ended before it was up", log)
        if time.monotonic() > deadline:
            raise ResourcesError(_describe(f"was not up after {PATIENCE_SECONDS} s", log))
        time.sleep(0.5)
    return ""


def _describe(fault: str, log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-8:]
    return "\n  ".join([f"node {log.stem} {fault}:", *lines])


def _save(state: Path, folder: Path, starts: Sequence[psutil.Process]) -> None:
    plain = {"folder": str(folder), "starts": [[process.pid, process.create_time()] for process in starts]}
    write_atomic(state / PROCESSES, json.dumps(plain))


def _load(state: Path) -> tuple[Path, list[psutil.Process]] | None:
    """Return Ray's folder and each `ray start` that still runs.

    A process id that belongs to another process does not count.

    None without a rehearsal, or with a damaged file, which a warning names.
    """
    path = state / PROCESSES
    try:
        plain = json.loads(path.read_text())
        folder, starts = str(plain["folder"]), [(int(pid), float(began)) for pid, began in plain["starts"]]
        if not _is_ours(folder):
            raise ValueError(f"{folder!r} is not a folder that a rehearsal makes")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is damaged and ignored (%s); look for processes of `ray start` and end them", path, error)
        return None
    running = []
    for pid, began in starts:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == began:
                running.append(process)
    return Path(folder), running


def _is_ours(folder: str) -> bool:
    """Return whether `up` may use the folder: `up` names folders so, and an existing one belongs to this user."""
    path = Path(folder)
    if str(path) != folder or path.parent != FOLDER or not re.fullmatch(rf"{PREFIX}[a-z0-9_]{{8}}", path.name):
        return False
    if not os.path.lexists(path):
        return True
    return not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.getuid()


def _alive(state: Path) -> bool:
    rehearsal = _load(state)
    return rehearsal is not None and bool(rehearsal[1])


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _names(process: psutil.Process, folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.pid != os.getpid() and any(folder in word for word in process.cmdline())
    return False


def _check_port(port: int) -> None:
    """Raise ConfigError unless a server can listen there: no other does, and no connection has it as its own port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            fault = "is in use, perhaps by another Ray cluster" if taken else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} {fault}; choose another with --port") from None
