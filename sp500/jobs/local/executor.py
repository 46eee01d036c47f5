"""Jobs on this machine: one tree of processes each, with a supervisor that outlives the process that submitted it.

This process keeps no state: all that is known of a job is in its folder. `job_folder` explains the files.
The price: a small process per running job, 15 MiB, and about 70 ms of CPU to start it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import yaml

from sp500.errors import ConfigError, Unreachable
from sp500.jobs.executor import Line, Request
from sp500.jobs.local import log_file, processes
from sp500.jobs.local.job_folder import REQUEST, SECOND, SETTINGS, START, STOP, Command, JobFolder
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Replicas, Role, Status
from sp500.machine.units import size_bytes

HANDLE = re.compile(r"[a-z][a-z0-9-]{0,46}")
GRACE_SECONDS = 10
# Seconds within which a job that another process starts has begun, and one that is killed is gone.
SOON = 30


def request(spec: JobSpec, *, cwd: Path, environment: Mapping[str, str], python: str) -> Request:
    """Return what submit starts. For a first word `python` or `sp500`, the interpreter `python` runs.

    The command gets `environment`, in which the variables of `spec.secrets` have to be, and `spec.env` over it. All
    workers together have `memory_bytes`. If there are settings, the argv's last word names their file, and submit
    puts in its place. Raises ConfigError for a secret that the environment lacks.
    """
    if missing := sorted(set(spec.secrets) - set(environment)):
        raise ConfigError(f"secrets: {missing[0]} is not in the environment; export it from your shell")
    first, *rest = spec.command(SETTINGS)
    programs = {"python": [python], "python3": [python], "sp500": [python, "-P", "-m", "sp500.cli"]}
    return {
        "argv": [*programs.get(first, [first]), *rest],
        "cwd": str(cwd),
        # Lines are in the log when they are printed, not when a buffer is full.
        "environment": {"PYTHONUNBUFFERED": "1", **environment, **spec.env},
        "settings": yaml.safe_dump(spec.settings, sort_keys=False) if spec.settings else None,
        "memory_bytes": size_bytes(spec.memory) * spec.workers if spec.memory else None,
        "deadline_seconds": spec.deadline,
        "grace_seconds": GRACE_SECONDS,
    }


class LocalExecutor:
    """Runs jobs as processes of this machine, each in a folder of its own under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def submit(self, handle: str, request: Request) -> None:
        """Start the job, once. One whose supervisor was killed gets another, which enforces the rest of its limits.

        Raises Unreachable if this machine cannot now: no room, no more processes.
        """
        job = self._job(handle)
        give_up = time.monotonic() + SOON
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            job.make()
            while not job.has(START):
                if (lock := job.lock()) is not None:
                    with os.fdopen(lock):  # closed in any case: left behind, it would be held by this process
                        self._start(job, lock, request)
                    return
                if time.monotonic() > give_up:
                    raise Unreachable(
                        f"job {handle}: the process starting it did not finish within {SOON} s; submit it again"
                    )
                time.sleep(0.01)  # until the supervisor that another process starts is there
            if self.status(handle).unattended:
                self._attend(job)
        except OSError as error:
            raise Unreachable(f"job {handle} cannot be started from {job.path}: {error.strerror}") from error

    def status(self, handle: str) -> Status:
        """Return the status from the job's folder and its processes."""
        job = self._job(handle)
        if not job.has(REQUEST):
            return Status(JobState.LOST, f"no job {handle} is kept in {self._folder}", retryable=True)
        with job.at_rest() as at_rest:  # asked before reading: a supervisor writes the end before it lets go
            command, ending = job.command(), job.ending()
            started = command.started if command else None
            if ending is None:
                state, reason = _current_state(job, command, watched=not at_rest)
                runs = state is JobState.RUNNING
                roles, lost = {Role.SUBMITTER: Replicas(int(runs), 1)}, state is JobState.LOST
                return Status(
                    state, reason, started=started, replicas=roles, retryable=lost, unattended=runs and at_rest
                )
        return Status(
            ending.state,
            ending.reason,
            exit_code=ending.exit_code,
            started=started,
            ended=ending.ended,
            replicas={Role.SUBMITTER: Replicas(0, 1)},
            retryable=ending.retryable,
        )

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Yield lines of the job's log; stdout and stderr together, in the order they came."""
        status = partial(self.status, handle) if follow else None
        return log_file.of_command(self._job(handle).log, role=role, tail=tail, status=status)

    def stop(self, handle: str) -> None:
        """Ask the job to end: SIGTERM to its group now, SIGKILL to all of it after the grace of its request."""
        job = self._job(handle)
        status = self.status(handle)
        if not job.has(REQUEST) or (status.state.finished and job.has(START)):
            return
        with suppress(FileNotFoundError):  # deleted meanwhile
            job.ask_to_stop()
        if status.unattended:
            self._attend(job)

    def delete(self, handle: str) -> None:
        """Remove its folder; one that runs is stopped before, which takes as long as its grace.

        Raises Unreachable for one that is still there then.
        """
        job = self._job(handle)
        self.stop(handle)
        request = job.request()
        give_up = time.monotonic() + SOON + (request["grace_seconds"] if request else 0)
        while not self.status(handle).state.finished:
            if time.monotonic() > give_up:
                raise Unreachable(f"job {handle} was stopped and still runs; delete it again")
            time.sleep(0.02)
        if job.path.exists():
            job.remove()

    def _job(self, handle: str) -> JobFolder:
        if not HANDLE.fullmatch(handle):
            raise ConfigError(f"job {handle!r}: a handle matches {HANDLE.pattern}")
        return JobFolder(self._folder / handle)

    def _start(self, job: JobFolder, lock: int, request: Request) -> None:
        """Make the job known and hand it over, unless the last holder of the lock did."""
        if job.has(START):
            return
        job.log.touch(mode=0o600)
        argv = request["argv"]
        if request["settings"] is not None:
            job.write_settings(request["settings"])
            argv = [*argv[:-1], str(job.settings)]
        job.write(REQUEST, request | {"argv": argv})
        self._supervise(job, lock)

    def _attend(self, job: JobFolder) -> None:
        """Start another supervisor for a job whose own was killed, unless another process was faster."""
        if (lock := _wait_for_lock(job)) is not None:
            with os.fdopen(lock):
                self._supervise(job, lock)

    def _supervise(self, job: JobFolder, lock: int) -> None:
        """Start a supervisor that holds the lock from now on, also after this process has ended."""
        self._supervisors = [each for each in self._supervisors if each.poll() is None]
        # It belongs to the job that it watches, and not to one that submitted it.
        environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
        argv = [sys.executable, "-P", "-m", "sp500.jobs.local.supervisor", str(job.path), str(lock)]
        with job.log.open("ab") as log:
            supervisor = subprocess.Popen(  # noqa: S603 - a list of words
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[lock],
                start_new_session=True,
            )
        self._supervisors.append(supervisor)


def _wait_for_lock(job: JobFolder) -> int | None:
    """Return the lock of a job without a supervisor. Waits for processes that only read the status."""
    while (lock := job.lock()) is None:
        with job.at_rest() as at_rest:
            if not at_rest:
                return None
    return lock


def _current_state(job: JobFolder, command: Command | None, *, watched: bool) -> tuple[JobState, str]:
    """Return state and reason of a job that has not ended."""
    if watched and command is None:
        return JobState.PENDING, "is being started on this machine"
    if watched and command is not None:
        stopping = ", and was asked to end" if job.has(STOP) else ""
        second = ". Its first supervisor was killed, so its end will be LOST" if job.has(SECOND) else ""
        return JobState.RUNNING, f"runs on this machine as process {command.pid}{stopping}{second}"
    if (start := job.start()) is None:
        return JobState.LOST, "never began: its start was cut off; submitting it again starts it"
    if command and processes.members(job.path, command.pid, start, command.born):
        return JobState.RUNNING, f"runs as process {command.pid} without limits: its supervisor was killed"
    return JobState.LOST, "ended without an exit code: killed with its supervisor, or this machine was restarted"
