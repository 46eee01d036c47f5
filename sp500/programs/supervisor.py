"""The process that runs one program with all its processes: `python -m sp500.programs.supervisor`.

The first line of its stdin is the request, "stop" asks the program to end, and the end of stdin means that the process
that started it is gone. It prints a line of JSON for each measurement, and a last one for the end, when no process of
the program is left. Memory is sampled as often as costs 2% of the time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import subprocess
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from sp500.errors import DiskError
from sp500.machine import process_tree
from sp500.machine.memory import COST, sum_pss_bytes
from sp500.programs.output import Lines, Log, MetricReader
from sp500.programs.program import End

IN, OUT = 0, 1
TICK = 0.1
BLOCK = 1 << 16
TAIL, TAIL_LETTERS = 5, 1000
# Seconds that a program whose starter is gone may take to end.
ALONE_SECONDS = 3.0


def main() -> None:
    """Run the program that the first line of stdin asks for."""
    process_tree.adopt_orphans()
    text = b""
    while block := os.read(IN, 1):  # no further than the line: what follows is read as it comes
        text += block
        if block == b"\n":
            break
    else:
        return
    try:
        end = Supervisor(json.loads(text)).run()
    except DiskError as error:
        end = End("lost", detail=f"its log {error}", at=time.time())
    finally:
        process_tree.end_descendants()
    _print({"end": asdict(end)})


class Supervisor:
    """The processes of one program, and what limits them."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request, self._limits = request, request["limits"]
        self._log, self._lines = Log(Path(request["log"])), Lines()
        self._reader = MetricReader(request["metric"], request["pattern"])
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._started, self._peak, self._sample_at = time.monotonic(), 0, 0.0
        self._forced: End | None = None
        self._kill_at = math.inf
        self._sources = [IN]

    def run(self) -> End:
        """Run it to its end, own or forced."""
        output, writer = os.pipe()
        os.set_blocking(output, False)
        try:
            pid = self._start(writer)
        except (OSError, ValueError) as error:  # ValueError: a NUL
            why = getattr(error, "strerror", None) or error
            return self._close(End("start", detail=f"{self._request['argv'][0]} cannot be started: {why}"))
        finally:
            os.close(writer)
        self._sources.append(output)
        code = None
        while code is None and time.monotonic() < self._kill_at:
            self._listen(output)
            self._check_limits()
            code = process_tree.reap_children()[0].get(pid)
        process_tree.end_descendants()
        while self._take(output):  # what was printed before: no process is left to print more
            pass
        for line in self._lines.end():
            self._take_line(line)
        return self._close(replace(self._forced or End("exit"), code=code))

    def _start(self, writer: int) -> int:
        process = subprocess.Popen(  # noqa: S603 - a list of words
            self._request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            cwd=self._request["cwd"],
            env=self._request["environment"],
            start_new_session=True,
            preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        process.returncode = 0  # its end is collected by `reap_children`, and not by Popen
        return process.pid

    def _listen(self, output: int) -> None:
        """Read what comes within a tick."""
        ready, _, _ = select.select(self._sources, [], [], TICK)
        if output in ready and not self._take(output):
            self._sources.remove(output)  # closed by the program, which may run on
        if IN in ready:
            words = os.read(IN, BLOCK)
            if b"stop" in words:
                self._force(End("stopped", detail="stopped on request"), self._limits["grace_seconds"])
            if not words:
                self._sources.remove(IN)
                self._force(End("stopped", detail="what started it has ended"), ALONE_SECONDS)

    def _check_limits(self) -> None:
        began, seconds, most = time.monotonic(), self._limits["seconds"], self._limits["memory_bytes"]
        if seconds is not None and began - self._started > seconds:
            self._force(End("seconds", detail=f"took longer than {seconds:g} s"), self._limits["grace_seconds"])
        if began < self._sample_at:
            return
        used = sum_pss_bytes(process_tree.list_below(psutil.Process()))
        self._peak = max(self._peak, used)
        self._sample_at = time.monotonic() + max(COST * (time.monotonic() - began), TICK)
        if most is not None and used > most:
            detail = f"out of memory: {used / 2**20:.0f} MiB in use, over its limit of {most / 2**20:.0f} MiB"
            self._force(End("memory", detail=detail), 0.0)

    def _force(self, end: End, grace_seconds: float) -> None:
        """Ask all its processes to end, once, and kill them after the grace."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace_seconds)
        if self._forced is None:
            self._forced = end
            process_tree.send_signal(process_tree.list_below(psutil.Process()), signal.SIGTERM)

    def _take(self, output: int) -> bool:
        """Read a block of output. Returns whether there was one."""
        try:
            block = os.read(output, BLOCK)
        except BlockingIOError:
            return False
        self._log.write(block)
        for line in self._lines.add(block):
            self._take_line(line)
        return bool(block)

    def _take_line(self, line: str) -> None:
        if line.strip():
            self._tail.append(line.rstrip()[:TAIL_LETTERS])
        measurement = self._reader.read(line)
        if measurement is None or self._forced:
            return
        if math.isfinite(measurement.value):
            _print(asdict(measurement))
            return
        metric = f"{self._request['metric']} = {measurement.value}"
        detail = f"printed {metric} at epoch {measurement.epoch}"
        self._force(End("not_finite", detail=detail), self._limits["grace_seconds"])

    def _close(self, end: End) -> End:
        """Return the end with what is known of the whole."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return replace(
            end,
            tail=tuple(self._tail),
            seconds=time.monotonic() - self._started,
            cpu_seconds=used.ru_utime + used.ru_stime,
            peak_bytes=self._peak,
            at=time.time(),
        )


def _print(event: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the process that started it is gone
        os.write(OUT, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
