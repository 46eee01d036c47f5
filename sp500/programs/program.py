"""A program as the process that started it sees it: its measurements, its end, and how to stop it.

Between the two is a supervisor, a process of its own (`supervisor.py`): it becomes the parent of whatever the program
leaves behind, and ends all of it when this process ends, also by SIGKILL. The price: 20 MiB and a tenth of a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sp500.programs.output import Measurement

Cause = Literal["exit", "start", "stopped", "seconds", "memory", "not_finite", "lost"]
"""By itself; it could not be started; on request; its limits; a metric that is not finite; its supervisor."""
GRACE_SECONDS = 10.0
NAMES = {number.value: number.name for number in signal.Signals}
PACKAGES = str(Path(__file__).parents[2])
REASON = 300
"""Characters of a program's last line that a reason repeats."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program with all its processes."""

    seconds: float | None = None
    memory_bytes: int | None = None
    grace_seconds: float = GRACE_SECONDS
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True)
class Request:
    """A program to run."""

    argv: Sequence[str]
    """A first word `python` becomes the interpreter of this process."""
    cwd: str
    environment: Mapping[str, str]
    """Variables in addition to those of this process."""
    log: str
    """File that its output goes to."""
    metric: str
    pattern: str = ""
    limits: Limits = Limits()


@dataclass(frozen=True)
class End:
    """The end of a program and all its processes."""

    cause: Cause
    code: int | None = None
    """Its exit code, -n if signal n ended it."""
    detail: str = ""
    """What a limit was, or why it could not be started."""
    tail: tuple[str, ...] = ()
    """Its last lines."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Largest proportional set size of all its processes together, sampled."""
    at: float = 0.0
    """When it ended, in seconds since 1970 (UTC)."""

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> End:
        """Return the end that was written as JSON."""
        return cls(**{**fields, "tail": tuple(fields["tail"])})

    @property
    def report(self) -> str:
        """The reason, and the lines before the last one."""
        return "\n  ".join([self.reason, *self.tail[-3:-1]])

    @property
    def reason(self) -> str:
        """The reason for its failure; empty if it ended by itself with exit code 0."""
        last = f": {self.tail[-1][:REASON]}" if self.tail else ""
        if self.cause == "exit" and self.code is not None and self.code < 0:
            name = NAMES.get(-self.code, "real-time")
            memory = ", as the kernel does when memory runs out" if -self.code == signal.SIGKILL else ""
            return f"killed by signal {-self.code} ({name}){memory}{last}"
        if self.cause == "exit":
            return f"ended with exit code {self.code}{last}" if self.code else ""
        if self.cause == "lost":
            return self.detail or "its supervisor was killed, so its exit code is not known"
        return self.detail


class Program:
    """A program that runs. Its supervisor ends it when this object's process ends."""

    def __init__(self, request: Request) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sp500.programs.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # Workers of Ray may have this package from their job's folder, and not installed.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (PACKAGES, os.environ.get("PYTHONPATH"))))},
            # Signals that a terminal sends to its group reach this process, which stops the program in its own time.
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._rest = b""
        first, *words = request.argv
        argv = [sys.executable if first in {"python", "python3"} else first, *words]
        # Lines are read when they are printed, not when a buffer is full.
        environment = {"PYTHONUNBUFFERED": "1", **os.environ, **request.environment}
        self._send(json.dumps(asdict(replace(request, argv=argv, environment=environment))))

    def fileno(self) -> int:
        """Return a descriptor that is ready to be read when `read` has something to return."""
        return self._stdout.fileno()

    def read(self) -> list[Measurement | End]:
        """Return the events that have come; waits for one. The end is the last."""
        block = os.read(self.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + block).split(b"\n")
        events = [_parse(json.loads(line)) for line in lines]
        if not block:
            events.append(End("lost", at=time.time()))
        if events and isinstance(events[-1], End):
            self.close()
        return events

    def events(self) -> Iterator[Measurement | End]:
        """Yield all events up to the end."""
        while not self._stdout.closed:
            yield from self.read()

    def stop(self) -> None:
        """Ask it to end: SIGTERM to all its processes, and SIGKILL after the grace."""
        self._send("stop")

    def hang_up(self) -> None:
        """Let it end within seconds, since its result is no longer needed."""
        self._stdin.close()

    def close(self) -> None:
        """End it if it still runs, and wait until no process of it is left."""
        if self._stdout.closed:
            return
        self.hang_up()
        while self._stdout.read(1 << 16):  # what it prints until it has ended
            pass
        self._process.wait()
        self._stdout.close()

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended: `read` says how
            self._stdin.write(line.encode() + b"\n")


def _parse(event: dict[str, Any]) -> Measurement | End:
    if "end" in event:
        return End.from_fields(event["end"])
    return Measurement(**event)
