"""A program as the process that started it sees it: its measurements, its end, and how to stop it.

Between the two is a supervisor, a process of its own (`supervisor.py`): it becomes the parent of whatever the program
leaves behind, and ends all of it when this process ends, also by SIGKILL. The price: 20 MiB and a tenth of a second.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sp500.programs.output import Measurement

Cause = Literal["exit", "start", "stopped", "seconds", "memory", "not_finite", "lost"]
"""By itself; it could not be started; on request; its limits; a metric that is no finite number; its supervisor."""
GRACE_SECONDS = 10.0
NAMES = {number.value: number.name for number in signal.Signals}
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
    cwd: str
    environment: Mapping[str, str]
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

    @property
    def reason(self) -> str:
        """Why it is no success; empty if it ended by itself with exit code 0."""
        last = f": {self.tail[-1][:REASON]}" if self.tail else ""
        if self.cause == "exit" and self.code is not None and self.code < 0:
            name = NAMES.get(-self.code, "real-time")
            memory = ", as the kernel does when memory runs out" if -self.code == signal.SIGKILL else ""
            return f"killed by signal {-self.code} ({name}){memory}{last}"
        if self.cause == "exit":
            return f"ended with exit code {self.code}{last}" if self.code else ""
        if self.cause == "lost":
            return "its supervisor was killed, so its exit code is not known"
        return self.detail


class Program:
    """A program that runs. Its supervisor ends it when this object's process ends."""

    def __init__(self, request: Request) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sp500.programs.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Signals that a terminal sends to its group reach this process, which stops the program in its own time.
            start_new_session=True,
        )
        self._ended = False
        self._tell(json.dumps(asdict(request)))

    def fileno(self) -> int:
        """Return a descriptor that is ready to be read when `read` has something to return."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def read(self) -> Measurement | End:
        """Return the next event; waits for it. The end is the last."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self.close()
            return End("lost")
        event = json.loads(line)
        if "end" not in event:
            return Measurement(**event)
        self.close()
        return End(**{**event["end"], "tail": tuple(event["end"]["tail"])})

    def events(self) -> Iterator[Measurement | End]:
        """Yield all events up to the end."""
        while not self._ended:
            yield self.read()

    def stop(self) -> None:
        """Ask it to end: SIGTERM to all its processes, and SIGKILL after the grace."""
        self._tell("stop")

    def close(self) -> None:
        """End it now if it still runs, and wait until no process of it is left."""
        self._ended = True
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        while self._process.stdout.read(1 << 16):  # what it prints until it has ended
            pass
        self._process.wait()
        self._process.stdout.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended: `read` says how
            return
