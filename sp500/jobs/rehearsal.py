"""A cluster of this machine's processes, up until it is told to go down.

What is up stands in a file: each `ray start` with its process id and when that began, so that `down` ends what was
started here and nothing else, also after the terminal is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from sp500.errors import ConfigError, ResourcesError
from sp500.jobs.rehearse import Node, command

PATIENCE_SECONDS = 90
GRACE_SECONDS = 10
PROCESSES = "processes.json"


def up(made: Sequence[Node], state: Path, dashboard: int, say: Callable[[str], None]) -> None:
    """Start the nodes and wait until all are alive; the dashboard is at that port of 127.0.0.1.

    Raises ConfigError where a rehearsal is up already or the port is taken, ResourcesError for a node that does not
    come, after which nothing is left.
    """
    if _alive(state):
        raise ConfigError("a rehearsal is up already; scripts/rehearse --down ends it")
    if not _free(dashboard):
        raise ConfigError(f"port {dashboard} is taken, by another Ray cluster perhaps; --port takes another")
    state.mkdir(parents=True, exist_ok=True)
    # Sockets lie in there, whose paths may have 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="sp500-ray-", dir="/tmp"))
    _keep(state, folder, [])
    secret, port = token(), _any_port()
    started: list[psutil.Process] = []
    try:
        for number, node in enumerate(made, 1):
            own = folder / str(number)
            argv = command(node, ray=Path(sys.executable).with_name("ray"), port=port, dashboard=dashboard, folder=own)
            started.append(_start(argv, node, state / f"{node.name}.log"))
            _keep(state, folder, started)
            # One after the other: nodes of one machine choose their ports by looking which are free.
            _until(lambda: _count(dashboard, secret) >= number, started[-1], state / f"{node.name}.log")  # noqa: B023
            say(f"{node.name} is up: {node.cpus} CPUs")
    except BaseException:
        down(state)
        raise


def down(state: Path) -> int:
    """End every process of the rehearsal; gives how many `ray start` there were. No rehearsal is no error."""
    kept = _kept(state)
    if kept is None:
        return 0
    folder, starts = kept
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


def token() -> str:
    """Ray's token of this user, from Ray's own file, which is made where it is missing and closed to others."""
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    path.chmod(0o600)
    return path.read_text().strip()


def _start(argv: Sequence[str], node: Node, log: Path) -> psutil.Process:
    with log.open("wb") as output:
        # A session of its own: it outlives the terminal, and Ctrl-C in it.
        process = subprocess.Popen(  # noqa: S603 - our own argv
            argv, env=_environment(node.environment), stdout=output, stderr=output, start_new_session=True
        )
    return psutil.Process(process.pid)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Of a node: this one without Ray's settings, python and ray of this environment first, and the node's own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    here = str(Path(sys.executable).parent)
    return {**plain, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}", **own, "RAY_AUTH_MODE": "token"}


def _count(dashboard: int, secret: str) -> int:
    """Nodes that the dashboard knows to be alive; none while it does not answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{dashboard}/nodes?view=summary", headers={"Authorization": f"Bearer {secret}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            summary = json.load(answer)["data"]["summary"]
    except (OSError, ValueError, KeyError):
        return 0
    return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in summary)


def _until(ready: Callable[[], bool], process: psutil.Process, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        if ended or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").strip().splitlines()[-8:]
            how = "ended" if ended else f"was not up after {PATIENCE_SECONDS} s"
            raise ResourcesError("\n  ".join([f"node {log.stem} {how}:", *lines]))
        time.sleep(0.5)


def _keep(state: Path, folder: Path, starts: Sequence[psutil.Process]) -> None:
    plain = {"folder": str(folder), "starts": [[process.pid, process.create_time()] for process in starts]}
    whole = state / f"{PROCESSES}.new"
    whole.write_text(json.dumps(plain))
    whole.replace(state / PROCESSES)


def _kept(state: Path) -> tuple[Path, list[psutil.Process]] | None:
    """Ray's folder and the `ray start` that still run; a process id that is another process by now does not count."""
    try:
        plain = json.loads((state / PROCESSES).read_text())
    except FileNotFoundError:
        return None
    found = []
    for pid, began in plain["starts"]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == began:
                found.append(process)
    return Path(plain["folder"]), found


def _alive(state: Path) -> bool:
    kept = _kept(state)
    return kept is not None and bool(kept[1])


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _names(process: psutil.Process, folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.pid != os.getpid() and any(folder in word for word in process.cmdline())
    return False


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
