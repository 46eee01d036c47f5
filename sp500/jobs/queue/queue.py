"""The queue's interface for its users: add jobs, query them, stop them. The manager does the rest."""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from sp500.errors import ConfigError, LimitExceeded, ResourcesError, SP500Error
from sp500.jobs import names
from sp500.jobs.executor import Executor, Line
from sp500.jobs.local.processes import MARK
from sp500.jobs.queue import log_archive, retries
from sp500.jobs.queue.job import Job, NewJob
from sp500.jobs.queue.ledger import Ledger, NoRoom
from sp500.jobs.state import Role, Status, one_line
from sp500.jobs.target import Place
from sp500.machine.locks import acquire

SECONDS_BETWEEN_LOOKS = 0.25
# A manager holds its lock a second after it was started; of one that never does, so many are tried.
SECONDS_TO_BEGIN, MOST_BEGUN, SECONDS_REMEMBERED = 5.0, 3, 60.0
LARGEST_LOG = 10 * 2**20
# Without the letters and digits that are read for each other.
ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
SUFFIX = 5
# Room for the suffix of a further start, in a name that Kubernetes accepts.
LONGEST_NAME = names.LONGEST["RayJob"] - SUFFIX - 1 - len("-100")


def new_id(name: str) -> str:
    """Return a new id of a job: its name and a few random characters, so that the same name may be submitted again."""
    suffix = "".join(secrets.choice(ALPHABET) for _ in range(SUFFIX))
    return f"{name[:LONGEST_NAME].rstrip('-')}-{suffix}"


class Queue:
    """The jobs of one state folder."""

    def __init__(self, folder: Path, executor: Callable[[Place], Executor], manager: Sequence[str]) -> None:
        """Open the queue of a folder. `executor` makes the one of a place; `manager` is the command of a manager."""
        self.folder, self.ledger = folder, Ledger(folder / "queue.db")
        self.executor, self._manager = executor, list(manager)
        self._begun: list[float] = []
        try:
            self.ledger.create()
        except NoRoom:
            if not self.ledger.path.exists():
                raise
            # It may still be read; what writes to it fails then.
        except OSError as error:
            raise ConfigError(f"--state-dir {folder}: cannot be made ({error.strerror})") from error

    @property
    def logs_folder(self) -> Path:
        """The folder for the logs of ended jobs, with a folder for each."""
        return self.folder / "logs"

    def add(self, jobs: Sequence[NewJob]) -> None:
        """Queue all these jobs or none, and start a manager if none runs."""
        self._is_managed()  # raises before anything is queued
        with self.ledger.writing() as entry:
            entry.add(jobs, time.time())
        self.manage()

    def _is_managed(self) -> bool:
        """Return whether a manager is at work. Raises ConfigError on a file system without locks."""
        try:
            with acquire(FileLock(self.folder / "manager.lock", timeout=0, mode=0o600)):
                return False
        except Timeout:
            return True

    def manage(self) -> None:
        """Start a manager in the background if none is at work and one is needed.

        Raises ResourcesError, with the end of its log, if each manager ends as soon as it has started.
        """
        if not self.ledger.busy():
            self._begun.clear()
            return
        if self._is_managed():
            self._begun.clear()
            return
        self._begun = [at for at in self._begun if time.monotonic() < at + SECONDS_REMEMBERED]
        if self._begun and time.monotonic() < self._begun[-1] + SECONDS_TO_BEGIN:
            return
        if len(self._begun) == MOST_BEGUN:
            raise ResourcesError(
                f"the queue manager keeps exiting. Last line of {self.folder}/manager.log: {self._last_words()}"
            )
        self._begun.append(time.monotonic())
        with self._log() as log:
            # Its own session, so that it outlives the shell; two at once find out by the lock.
            subprocess.Popen(  # noqa: S603 - a list of words
                self._manager,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={name: value for name, value in os.environ.items() if name != MARK},
                start_new_session=True,
            )

    def _log(self) -> BinaryIO:
        """Open the manager's log to append to; a large one is emptied first."""
        path = self.folder / "manager.log"
        large = path.exists() and path.stat().st_size > LARGEST_LOG
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (os.O_TRUNC if large else 0)
        return os.fdopen(os.open(path, flags, 0o600), "ab")

    def _last_words(self) -> str:
        with (self.folder / "manager.log").open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - 4096, 0))
            lines = log.read().decode(errors="replace").splitlines()
        return lines[-1] if lines else "is empty"

    def job(self, id: str) -> Job:
        """Return the job of that id. Raises ConfigError, with the nearest id, for an unknown one."""
        if jobs := self.ledger.jobs([id]):
            return jobs[0]
        ids = [job.id for job in self.ledger.jobs()]
        near = difflib.get_close_matches(id, ids, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "sp500 jobs list shows those that are"
        raise ConfigError(f"no job {id!r} in {self.folder}; {hint}")

    def refresh(self, job: Job) -> tuple[Job, Status | None]:
        """Return the job as it is now, and its status from its executor. None if there is nothing to query."""
        if job.state.finished or not job.submitted:
            return job, None
        try:
            status = self.executor(job.target).status(job.handle)
        except SP500Error as error:
            return replace(job, reason=one_line(f"status unavailable: {error}")), None
        return retries.advance(job, status, time.time()).apply(job), status

    def logs(
        self, job: Job, *, role: Role | None, tail: int | None, follow: bool, start: int | None = None
    ) -> Iterator[Line]:
        """Yield lines as `Executor.logs` does; of an ended job, the kept lines.

        `start`: those of an earlier start, counted from 1. Raises ConfigError for one that never was.
        """
        if start not in {None, job.starts}:
            if start > job.starts:
                raise ConfigError(f"--start {start}: {job.id} has had {job.starts} starts")
            earlier = replace(job, starts=start)
            archived = log_archive.read(log_archive.folder(self.logs_folder, earlier), role=role, tail=tail)
            if archived is not None:
                yield from archived
                return
            yield from self.executor(job.target).logs(earlier.handle, role=role, tail=tail, follow=False)
            return
        if job.state.finished or not (job.submitted or follow):  # also between two starts
            archived = log_archive.read(log_archive.folder(self.logs_folder, job), role=role, tail=tail)
            if archived is not None:
                yield from archived
                return
        while follow and not (job.submitted or job.state.finished):
            self.manage()
            time.sleep(SECONDS_BETWEEN_LOOKS)
            job = self.job(job.id)
        if not job.starts:
            return
        yield from self.executor(job.target).logs(job.handle, role=role, tail=tail, follow=follow)
        # The executor sees a start end; the ledger knows whether another follows.
        while follow and not (after := self.job(job.id)).state.finished:
            if after.starts > job.starts:
                yield from self.logs(after, role=role, tail=None, follow=True)
                return
            self.manage()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def stop(self, ids: Sequence[str]) -> None:
        """Ask jobs to end; an ended one stays as it is. Raises ConfigError for an unknown id, before any is asked."""
        jobs = [self.job(id) for id in ids]
        with self.ledger.writing() as entry:
            for job in jobs:
                entry.ask_to_stop(job.id, time.time())
        self.manage()

    def wait(self, ids: Sequence[str], seconds: float | None = None) -> list[Job]:
        """Return the jobs when all have ended. Raises LimitExceeded if some have not after `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        full_ids = [self.job(id).id for id in ids]
        while left := [job for job in self.ledger.jobs(full_ids) if not job.state.finished]:
            if end is not None and time.monotonic() >= end:
                states = "; ".join(f"{job.id} is {job.state}: {job.reason}" for job in left)
                raise LimitExceeded(f"timed out after {seconds:g} s; still unfinished: {states.rstrip('.')}")
            self.manage()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return [self.job(id) for id in ids]

    def delete(self, ids: Sequence[str], *, force: bool = False) -> list[str]:
        """Remove jobs and what is kept of them. Returns what may be left of them elsewhere, one line each.

        Raises ConfigError for one that has not ended, and what its executor raises; with `force`, neither.
        """
        left = []
        for job in [self.job(id) for id in ids]:
            if not (job.state.finished or force):
                raise ConfigError(
                    f"{job.id} is {job.state}; stop it first: sp500 jobs stop {job.id}, or --force to forget it"
                )
            try:
                executor = self.executor(job.target)
                for start in range(1, job.starts + 1):
                    executor.delete(replace(job, starts=start).handle)
            except SP500Error as error:
                if not force:
                    raise
                left.append(f"{job.id} may still run on {job.kind.name}: {error}")
            shutil.rmtree(self.logs_folder / job.id, ignore_errors=True)
            with self.ledger.writing() as entry:
                for last in entry.jobs([job.id]):
                    entry.release(last, time.time())  # its budget is spent all the same
                entry.remove(job.id)
            self._forget_token(job)
        return left

    def _forget_token(self, job: Job) -> None:
        """Remove the token that was kept for a job if no other job needs it."""
        file = str(job.target.get("token_file") or "")
        kept_here = file and Path(file).parent == self.folder / "tokens"
        if kept_here and all(each.target.get("token_file") != file for each in self.ledger.jobs()):
            Path(file).unlink(missing_ok=True)
