"""The process that watches one job on this machine: `python -m sp500.jobs.local.supervisor FOLDER LOCK`.

LOCK is the number of an open file that holds the folder's lock. The process belongs to no shell and no manager, so the
job outlives both. It starts the command, holds it to its limits, ends what is left of it, and writes how it ended.
Started for a job that began already and whose first supervisor is gone, it takes that job over: the deadline counts
from the command's start, and memory and stops as before. It cannot learn the exit code of a process that is not its
child, so an end that it did not force is LOST.

Every fifth of a second it looks for a stop. Memory is sampled as often as costs 2% of the time: a command can pass its
limit for that long, which the machine's own memory has to bear.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

import psutil

from sp500.jobs.local import log_file, processes
from sp500.jobs.local.job_folder import COMMAND, SECOND, START, STOP, Command, Ending, JobFolder, Request
from sp500.jobs.log_lines import last_message, shorten
from sp500.jobs.state import FINAL_CODES, JobState
from sp500.machine import process_tree

TICK = 0.2
# Bytes at the end of a log in which the last message is looked for.
LAST_BYTES = 16_384
OVERDUE, OUT_OF_MEMORY = 4, 128 + signal.SIGKILL
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NAMES = {each.value: each.name for each in signal.Signals}


def main(arguments: Sequence[str]) -> None:
    """Watch the job of a folder to its end."""
    folder, lock = arguments
    os.set_inheritable(int(lock), False)
    job = JobFolder(Path(folder))
    request = job.request()
    assert request is not None
    signals = Signals()
    if job.has(START):
        conclude(job, job.ending() or take_over(job, request, signals))
        return
    job.write(START, {"pid": os.getpid()})
    ending = Ending(JobState.FAILED, "its supervisor failed; the end of the log says why", retryable=True)
    try:
        process_tree.adopt_orphans()
        ending = run(job, request, signals)
    finally:
        process_tree.end_descendants()
        conclude(job, ending)


class Signals:
    """Signals that this process received, collected until `wait` returns them."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        for descriptor in (self._reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *ENDING_SIGNALS):
            signal.signal(number, lambda *_: None)

    def wait(self, seconds: float) -> bytes:
        """Return the signals that arrived, after `seconds` or with the first one."""
        select.select([self._reader], [], [], seconds)
        try:
            return os.read(self._reader, 64)
        except BlockingIOError:
            return b""


def run(job: JobFolder, request: Request, signals: Signals) -> Ending:
    """Run the command to its end, own or forced. Descendants may be left."""
    if job.has(STOP):
        return Ending(JobState.STOPPED, "stopped on request, before it began")
    started = time.time()
    waiting = processes.prepare(request, job.log)
    command = Command(waiting.pid, started, begun=time.monotonic(), born=process_tree.birth(waiting.pid))
    job.write(COMMAND, asdict(command))
    if fault := waiting.begin():
        code, reason = fault
        return Ending(JobState.FAILED, f"{reason} (exit code {code})", code)
    limits = Limits(job, request, command.begun, _measure_children)
    return watch(job, request, waiting.pid, limits, signals)


class Limits:
    """Causes that may force a job's end: a stop, a signal to its supervisor, its deadline, its memory."""

    def __init__(self, job: JobFolder, request: Request, begun: float, measure: Callable[[], int]) -> None:
        """Watch a command that began at `begun` by the monotonic clock. `measure` returns bytes of memory in use."""
        self._job, self._begun, self._measure = job, begun, measure
        self._seconds: float | None = request["deadline_seconds"]
        self._limit: int | None = request["memory_bytes"]
        self._sample_at = -inf if self._limit else inf

    def check(self, received: bytes) -> Ending | None:
        """Return the end that is due now, if any; `received`: numbers of the signals that came."""
        if self._job.has(STOP):
            return Ending(JobState.STOPPED, "stopped on request")
        if received_signals := [number for number in ENDING_SIGNALS if number in received]:
            reason = f"ended because its supervisor got {received_signals[0].name}, as at a shutdown of this machine"
            return Ending(JobState.FAILED, reason, 128 + received_signals[0], retryable=True)
        if self._seconds is not None and time.monotonic() - self._begun >= self._seconds:
            return Ending(JobState.FAILED, f"took longer than its deadline of {self._seconds} s", OVERDUE)
        return self._over_memory()

    def _over_memory(self) -> Ending | None:
        began = time.monotonic()
        if self._limit is None or began < self._sample_at:
            return None
        from sp500.machine.memory import COST

        memory = self._measure()
        self._sample_at = time.monotonic() + COST * (time.monotonic() - began)
        if memory <= self._limit:
            return None
        reason = f"killed with {_mebibytes(memory)} of memory in use, over its limit of {_mebibytes(self._limit)}"
        return Ending(JobState.FAILED, f"{reason}; raise its --memory, or make it need less", OUT_OF_MEMORY)


def _measure_children() -> int:
    """Return the memory of all processes below this one."""
    from sp500.machine.memory import sum_pss_bytes

    return sum_pss_bytes(process_tree.list_below(psutil.Process()))


def watch(job: JobFolder, request: Request, pid: int, limits: Limits, signals: Signals) -> Ending:
    """Wait for the end of a command that is a child of this process.

    One forced has the grace to end with all its children; its own end comes first.
    """
    code, forced, kill_at = None, None, inf
    while True:
        cause = limits.check(signals.wait(TICK))
        log_file.trim(job.log)
        exit_codes, left = process_tree.reap_children()
        code = exit_codes.get(pid, code)
        if forced is None and code is not None:
            return of_exit(code, job.log)
        if forced is None and cause is not None:
            forced, kill_at = cause, time.monotonic() + request["grace_seconds"]
            if forced.exit_code == OUT_OF_MEMORY:
                return forced
            process_tree.signal_group(pid, signal.SIGTERM)
        elif forced and (not left or time.monotonic() >= kill_at):
            own = 128 + signal.SIGKILL if code is None else _shell_code(code)
            return forced if forced.exit_code is not None else replace(forced, exit_code=own)


def of_exit(code: int, log: Path) -> Ending:
    """Return the ending for a command that exited by itself; `code` is -n if signal n ended it.

    The reason ends with the last message of its log, which is that of the error.
    """
    if code == 0:
        return Ending(JobState.SUCCEEDED, "ended with exit code 0", 0)
    if code > 0:
        message = ""
        with suppress(OSError), log.open("rb") as file:  # one read: what the command left behind may still write
            file.seek(max(log.stat().st_size - LAST_BYTES, 0))
            message = last_message(file.read(LAST_BYTES).decode("utf-8", "replace"))
        reason = ": ".join(filter(None, [f"ended with exit code {code}", shorten(message)]))
    else:
        reason = f"killed by signal {-code} ({NAMES.get(-code, 'real-time')})"
        reason += ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
    return Ending(JobState.FAILED, reason, _shell_code(code), retryable=code not in FINAL_CODES)


class Orphans:
    """Processes of a job whose own supervisor is gone. Finding them costs time, so they are kept for a while."""

    def __init__(self, job: JobFolder, pid: int, session: int, born: float | None) -> None:
        self._arguments = job.path, pid, session, born
        self._pid = pid
        self._known: list[psutil.Process] = []
        self._look_at = -inf

    def find_living(self) -> list[psutil.Process]:
        """Return living processes. Searches as often as 2% of the time allows, and whenever no known process lives."""
        from sp500.machine.memory import COST

        self._known = [each for each in self._known if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        if not self._known or time.monotonic() >= self._look_at:
            began = time.monotonic()
            self._known = processes.members(*self._arguments)
            self._look_at = time.monotonic() + COST * (time.monotonic() - began)
        return self._known

    def command_lives(self) -> bool:
        """Return whether the command itself is alive."""
        return any(each.pid == self._pid for each in self._known)

    def measure_memory(self) -> int:
        """Return the memory of all of them in bytes."""
        from sp500.machine.memory import sum_pss_bytes

        return sum_pss_bytes(self.find_living())


def take_over(job: JobFolder, request: Request, signals: Signals) -> Ending:
    """Hold a job whose own supervisor is gone to its limits; when its command is gone, end what is left of it."""
    start, command = job.start(), job.command()
    assert start is not None
    lost = Ending(JobState.LOST, "ended after its supervisor was killed, so its exit code is not known", retryable=True)
    if command is None:
        return lost
    job.write(SECOND, {"pid": os.getpid()})
    orphans = Orphans(job, command.pid, start, command.born)
    limits = Limits(job, request, command.begun, orphans.measure_memory)
    forced, kill_at = None, inf
    while left := orphans.find_living():
        cause = limits.check(signals.wait(TICK))
        log_file.trim(job.log)
        if forced is None and not orphans.command_lives():
            forced, kill_at = lost, -inf
        elif forced is None and cause is not None:
            forced, kill_at = cause, time.monotonic() + request["grace_seconds"]
            kill_at = -inf if cause.exit_code == OUT_OF_MEMORY else kill_at
            process_tree.send_signal(left, signal.SIGTERM)
        if time.monotonic() >= kill_at:
            process_tree.send_signal(left, signal.SIGKILL)
    return forced or lost


def conclude(job: JobFolder, ending: Ending) -> None:
    """Write how the job ended. On a full disk wait for room: an end that is not on disk would be lost."""
    dated = replace(ending, ended=ending.ended or time.time())
    while job.path.exists():
        try:
            job.end(dated)
        except OSError:
            time.sleep(1)
        else:
            return


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    main(sys.argv[1:])
