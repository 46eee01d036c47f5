"""What another user of the machine could find of a Ray cluster that this process has started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import ray
from ray._private.worker import global_worker

NOBODY = 65534


def as_a_user(home: Path) -> None:
    """Make this process one of a user with this home, whose files others may read."""
    home.mkdir(exist_ok=True)
    os.environ["HOME"] = str(home)
    os.umask(0o022)


def session_folder() -> Path:
    """The folder that holds the sessions of the cluster, which is removed with it."""
    return Path(global_worker.node.get_session_dir_path()).parents[1]


def look() -> dict[str, object]:
    """Modes of token and folder, who listens where, and whether another user can list the session."""
    session = Path(global_worker.node.get_session_dir_path())
    connections = [
        connection
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("inet")
    ]
    return {
        "token": (Path.home() / ".ray" / "auth_token").stat().st_mode & 0o777,
        "folder": session_folder().stat().st_mode & 0o777,
        "entered": _enters(session) if os.getuid() == 0 else None,
        "listening": sorted({one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}),
        "longest": max(len(str(path)) for path in (session / "sockets").iterdir()),
        "cpus": ray.cluster_resources()["CPU"],
    }


def check(found: dict[str, object]) -> None:
    """Expect a cluster that is closed to them."""
    assert (found["token"], found["folder"]) == (0o600, 0o700)
    assert {address.removeprefix("::ffff:") for address in found["listening"]} == {"127.0.0.1"}
    assert not found["entered"]
    assert isinstance(found["longest"], int)
    assert found["longest"] <= 107
    assert found["cpus"] >= 1


def _enters(folder: Path) -> bool:
    done = subprocess.run(["ls", str(folder)], capture_output=True, user=NOBODY, group=NOBODY, check=False)
    return done.returncode == 0
