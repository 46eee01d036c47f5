"""`sp500 jobs manage`: the queue's manager, in the foreground. `submit` starts one in the background."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from filelock import FileLock, Timeout

from sp500.commands.jobs import queue_flags
from sp500.commands.verb import verb
from sp500.errors import ConfigError
from sp500.jobs import client
from sp500.jobs.queue import settings as queue_settings
from sp500.jobs.queue.manager import Manager
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.target import executors
from sp500.machine.disk import write_atomic
from sp500.machine.locks import acquire


class Manage(queue_flags.QueueFlags):
    """Run the queue's manager: one process for a folder, which may be killed and started again at any time."""

    idle_seconds: float | None = None
    """Seconds without an unfinished job after which to end. Default: never."""


def _manage(flags: Manage) -> tuple[str, int]:
    queue = client.open_queue(flags.state_dir)
    manager = Manager(
        queue.ledger,
        queue.logs_folder,
        executors(queue.folder),
        settings(queue.folder),
        queue_settings.machine(),
    )
    holder = queue.folder / "manager.holder"
    while True:
        try:
            # Verbs hold it for a moment, to see whether a manager does.
            with acquire(FileLock(queue.folder / "manager.lock", timeout=1, mode=0o600)):
                write_atomic(holder, f"process {os.getpid()} on {socket.gethostname()}", mode=0o600)
                manager.run(math.inf if flags.idle_seconds is None else flags.idle_seconds, Event())
        except Timeout:
            return f"{holder.read_text()} manages {queue.folder} already", 0
        # Whoever queued a job just before the lock was free relied on this process.
        if not queue.ledger.busy():
            return "nothing is left to do", 0


def settings(folder: Path) -> Callable[[], QueueSettings]:
    """Return a function that reads the file again when it has changed.

    An invalid file raises ConfigError at first. Later it is reported, and the settings stay.
    """
    known: tuple[int, QueueSettings] = (-1, QueueSettings())
    path = folder / queue_settings.FILE

    def read() -> QueueSettings:
        """Return the settings now."""
        nonlocal known
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        if stamp == known[0]:
            return known[1]
        try:
            current = client.read_settings(folder)
        except ConfigError as error:
            if known[0] < 0:
                raise
            print(f"{datetime.now(UTC):%F %T} the settings stay as they were: {error}", file=sys.stderr, flush=True)
            current = known[1]
        known = stamp, current
        return current

    return read


main = verb("jobs manage", Manage, _manage, hint="running jobs keep running")
