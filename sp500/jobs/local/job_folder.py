"""A job's folder on this machine: what each file says by being there.

    request.json   the job is known: its command, environment and limits. Written by submit, readable only by the user
    settings.yaml  the settings that the command gets under --config
    log            what the command and its children print
    lock           held (flock): somebody alive starts or watches the job. Submit takes it and hands the open file on
                   to the supervisor, which holds it until it ends: no moment lies between, and any kill frees it
    start.json     the one right to start is spent; names the supervisor. Written before there is a command
    command.json   the command's process and start. Written while that process still waits for the word to begin;
                   where the word never comes, because the supervisor was killed, it ends without having begun
    second.json    the first supervisor was killed; names the one that took the job over
    stop           somebody asked the job to end
    exit.json      the job has ended, and how. Written last, when no process of it is left

What follows from them, the first line that fits:

    no request.json              LOST: unknown job
    exit.json                    what it says
    lock held, no command.json   PENDING
    lock held                    RUNNING
    no start.json                LOST: its submit was killed; submitting again starts it, since nobody has
    a process of it lives        RUNNING and unattended: the supervisor was killed; submitting again starts another
    otherwise                    LOST: killed with its supervisor, or the machine was restarted

The command begins after start.json was written, start.json is written by the holder of the lock if there is none,
and none is ever removed: so a handle runs once at most, whatever is killed when. The price: a supervisor killed between
the two leaves a job that never ran and never will, LOST; another try has another handle.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from sp500.jobs.state import JobState
from sp500.machine.disk import write_atomic
from sp500.machine.locks import try_lock

REQUEST, START, COMMAND, SECOND, EXIT = "request.json", "start.json", "command.json", "second.json", "exit.json"
SETTINGS, LOG, STOP, LOCK = "settings.yaml", "log", "stop", "lock"


class Request(TypedDict):
    """The command that a supervisor runs: what request.json holds."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    deadline_seconds: float | None
    memory_bytes: int | None
    grace_seconds: float
    settings: str | None
    """Content of the settings file that the command reads."""


@dataclass(frozen=True)
class Command:
    """The process of the command: what command.json holds."""

    pid: int
    started: float
    """Its start, in seconds since 1970 (UTC)."""
    begun: float
    """Its start by this machine's monotonic clock."""
    born: float | None
    """Its start as the kernel has it, which `process_tree.birth` reads. None if it had ended already."""


@dataclass(frozen=True)
class Ending:
    """The end of a job, as exit.json holds it."""

    state: JobState
    reason: str
    exit_code: int | None = None
    retryable: bool = False
    ended: float | None = None


class JobFolder:
    """Reads and writes the files of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / LOG
        self.settings = path / SETTINGS

    def make(self) -> None:
        """Create the folder. Only its user may read it."""
        self.path.mkdir(mode=0o700, exist_ok=True)

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.path / name).exists()

    def _read(self, name: str) -> Any:
        """Return a file's content. None if there is no such file."""
        try:
            return json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None

    def request(self) -> Request | None:
        """Return what the supervisor runs. None if the job is not known."""
        request: Request | None = self._read(REQUEST)
        return request

    def start(self) -> int | None:
        """Return the process id of the supervisor that began the job. None if it has not begun."""
        content = self._read(START)
        return None if content is None else int(content["pid"])

    def command(self) -> Command | None:
        """Return the process of the command. None if there is none yet."""
        content = self._read(COMMAND)
        return None if content is None else Command(**content)

    def write(self, name: str, content: Mapping[str, object]) -> None:
        """Write a file durably, readable only by the user."""
        write_atomic(self.path / name, json.dumps(content, indent=1), mode=0o600)

    def write_settings(self, text: str) -> None:
        """Write the settings, read-only."""
        write_atomic(self.settings, text, mode=0o400)

    def ask_to_stop(self) -> None:
        """Ask the supervisor to end the job."""
        (self.path / STOP).touch(mode=0o600)

    def end(self, ending: Ending) -> None:
        """Write how the job ended."""
        self.write(EXIT, asdict(ending))

    def ending(self) -> Ending | None:
        """Return how the job ended; None while it has not."""
        if (content := self._read(EXIT)) is None:
            return None
        return Ending(**(content | {"state": JobState(content["state"])}))

    def lock(self) -> int | None:
        """Return an open file that holds the lock until its last copy is closed. None if another process holds it."""
        return _try_lock(os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600))

    @contextmanager
    def at_rest(self) -> Iterator[bool]:
        """Yield whether no process starts or watches the job. If so, none can begin to while the block runs."""
        try:
            descriptor = _try_lock(os.open(self.path / LOCK, os.O_RDWR), shared=True)
        except FileNotFoundError:
            yield True
            return
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def remove(self) -> None:
        """Make the job unknown, its environment first."""
        (self.path / REQUEST).unlink(missing_ok=True)
        shutil.rmtree(self.path)


def _try_lock(descriptor: int, *, shared: bool = False) -> int | None:
    if try_lock(descriptor, shared=shared):
        return descriptor
    os.close(descriptor)
    return None
