"""The queue's manager: schedules each job, hands it to its executor, and records what becomes of it.

All that it knows is in the ledger, so it may be killed at any point. A start is first claimed there, in one
transaction, then handed over, then marked as handed over; a manager that finds it claimed but not marked hands it over
once more, which an executor treats as done. Several managers are as safe as one, and waste time; so the first one holds
a lock.
"""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

from sp500.errors import Refused, ResourcesError, SP500Error, attempt
from sp500.jobs.executor import Executor, Request
from sp500.jobs.queue import budget, log_archive, retries, schedule, webhooks
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.ledger import Entry, Ledger
from sp500.jobs.queue.progress_reader import ProgressReader
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.resources import UNCOUNTED, Resources
from sp500.jobs.state import JobState, Status, one_line
from sp500.jobs.target import Place

SECONDS_BETWEEN_TURNS = 0.2
# At most, while nothing changes in the ledger or the settings.
SECONDS_BETWEEN_PLANS = 5.0
# Places that are looked at side by side: one that does not answer must not hold up the others.
THREADS = 8
# Each knock at a cluster that does not answer takes its time.
MOST_FAULTS = 2
# Of jobs whose room is another queue's to give, such as Kueue's.
ELSEWHERE = "elsewhere"


class Stopwatch:
    """Seconds since the claims of starts, since each was first seen, by a monotonic clock."""

    def __init__(self, clock: Callable[[], float], ticks: Callable[[], float]) -> None:
        """Read `clock`, the wall clock, and `ticks`, a monotonic one."""
        self._clock, self._ticks = clock, ticks
        self._seen: dict[str, tuple[float, float]] = {}

    def follow(self, active: Sequence[Job]) -> set[str]:
        """Count only for these starts. Returns the handles that it forgot."""
        for job in active:
            if job.handle not in self._seen and job.claimed is not None:
                self._seen[job.handle] = max(self._clock() - job.claimed, 0.0), self._ticks()
        ended = self._seen.keys() - {job.handle for job in active}
        for handle in ended:
            self._seen.pop(handle, None)
        return ended

    def seconds(self, job: Job) -> float:
        """Return the seconds since the claim of the job's present start."""
        before, since = self._seen.get(job.handle, (0.0, self._ticks()))
        return before + self._ticks() - since


class Manager:
    """Manages the jobs of one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        executor: Callable[[Place], Executor],
        settings: Callable[[], QueueSettings],
        machine: Resources,
        *,
        first_wait: float = retries.FIRST_WAIT,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep logs of ended jobs in `folder`; `executor` makes the one of a place; `first_wait`: before a retry.

        `clock` is for what is written down. `ticks`, which is monotonic, is for what has to happen after some time.
        """
        self.ledger, self.folder = ledger, folder
        self._executor, self._settings, self._machine = executor, settings, machine
        self._first_wait, self._clock, self._ticks = first_wait, clock, ticks
        self._known: list[Job] = []
        self._planned: tuple[tuple[int, ...], QueueSettings] | None = None
        self._plan_at = -math.inf
        self._looks: dict[str, Future[None]] = {}
        self._looked: dict[str, float] = {}
        self._stopwatch = Stopwatch(clock, ticks)
        self._couriers: dict[str, Future[None]] = {}
        self._posts = ThreadPoolExecutor(THREADS)
        self._progress = ProgressReader(folder, ticks)

    def run(self, idle_seconds: float, stop: Event) -> None:
        """Manage until `stop`, or until nothing was left to do for `idle_seconds`."""
        with ThreadPoolExecutor(THREADS) as pool:
            busy = self._ticks()
            while not stop.wait(SECONDS_BETWEEN_TURNS) and self._ticks() - busy <= idle_seconds:
                if self.turn(pool):
                    busy = self._ticks()

    def turn(self, pool: ThreadPoolExecutor) -> bool:
        """Claim the jobs that may start, update those that have, post changes. Whether anything is left to do."""
        jobs = self._claim_due_jobs()
        self._watch_places(pool, [job for job in jobs if not job.waits])
        return self._post_notices() or bool(jobs)

    def _watch_places(self, pool: ThreadPoolExecutor, active: Sequence[Job]) -> None:
        """Have each place looked at whose turn it is, and that is not being looked at."""
        for handle in self._stopwatch.follow(active):
            self._progress.forget(handle)
        places: dict[str, list[Job]] = {}
        for job in active:
            places.setdefault(json.dumps(job.target, sort_keys=True), []).append(job)
        for key, members in places.items():
            look = self._looks.get(key)
            due = self._looked.get(key, -math.inf) + members[0].kind.seconds_between_looks
            if (look is None or look.done()) and self._ticks() >= due:
                self._looked[key] = self._ticks()
                self._looks[key] = pool.submit(self._watch_jobs, members)

    def _post_notices(self) -> bool:
        """Run a courier for each receiver with undelivered notices. Whether there are any."""
        urls = {notice.url for notice in self.ledger.notices()}
        self._couriers = {url: courier for url, courier in self._couriers.items() if not courier.done()}
        for url in urls - self._couriers.keys():
            self._couriers[url] = self._posts.submit(
                webhooks.deliver, self.ledger, self._clock, webhooks.FIRST_WAIT, url
            )
        return bool(urls)

    def _claim_due_jobs(self) -> list[Job]:
        """Claim the jobs whose turn it is, and return the unfinished jobs.

        While nothing is written to the ledger they are those of the last turn: thousands of waiting jobs would else
        cost half a core. Budgets and expected ends change only with time, so a plan holds for a few seconds at most.
        """
        settings, stamp = self._settings(), self.ledger.stamp()
        if self._planned is None or self._planned != (stamp, settings) or self._ticks() >= self._plan_at:
            self._known = self._plan(settings)
            now = self._clock()
            waits = [job.not_before - now for job in self._known if job.waits and job.not_before > now]
            self._planned, self._plan_at = (stamp, settings), self._ticks() + min([SECONDS_BETWEEN_PLANS, *waits])
        return self._known

    def _plan(self, settings: QueueSettings) -> list[Job]:
        """Plan all unfinished jobs, write the plan down, and return the jobs."""
        now = self._clock()
        with self.ledger.writing() as entry:
            jobs, uses = entry.jobs(unfinished=True), entry.uses(budget.midnight(now))
            waiting, active = [job for job in jobs if job.waits], [job for job in jobs if not job.waits]
            left = budget.remaining_budgets(settings.budgets, uses, active, now)
            rooms = {job.kind.name: settings.room(job.kind.name, self._machine) for job in waiting}
            rooms[ELSEWHERE] = UNCOUNTED
            busy = [_busy(job) for job in active if not job.queued_elsewhere]
            queue = [_waiting(job, now) for job in waiting]
            plan = schedule.plan(queue, busy, rooms, left, settings.budgets, now=now)
            used = {device for job in active for device in job.devices}
            devices = [device for device in range(int(self._machine.gpus)) if device not in used]
            self._write(entry, waiting, plan, devices, now)
            if plan.start or any(job.stop_asked is not None for job in waiting):
                return entry.jobs(unfinished=True)
            return jobs

    def _write(self, entry: Entry, queue: Sequence[Job], plan: schedule.Plan, devices: list[int], now: float) -> None:
        for job in queue:
            if job.stop_asked is not None:
                entry.change(job, now, state=str(JobState.STOPPED), reason="stopped before its start", ended=now)
            elif job.id in plan.start:
                count = int(job.demand.gpus) if job.kind.is_here else 0
                own, devices[:count] = devices[:count], []
                entry.change(
                    job, now, state=str(JobState.PENDING), reason="its turn has come", starts=job.starts + 1,
                    submitted=False, claimed=now, placed=None, started=None, devices=own,
                )  # fmt: skip
            elif (reason := plan.reasons[job.id]) and reason != job.reason:
                entry.change(job, now, reason=reason)

    def _watch_jobs(self, jobs: Sequence[Job]) -> None:
        """Start, stop and query the jobs of one place. Its errors go into their reasons, and delay no other place."""
        why, faults = "", 0
        for job in jobs:
            if faults < MOST_FAULTS:
                fault = attempt(partial(self._watch_job, job), self._explain)
                if fault is None:
                    continue
                # This machine is always there; a cluster that failed twice is assumed to be away from all its jobs.
                why, faults = fault, faults + (not job.kind.is_here)
            self._change(job, {"reason": f"status unavailable: {why}"})

    def _explain(self, error: Exception) -> str:
        """Return the reason for an error of one job, which must not end the manager of all jobs."""
        if isinstance(error, SP500Error):
            return str(error)
        traceback.print_exception(error)
        return f"internal error ({type(error).__name__}: {error}); see {self.folder.parent}/manager.log"

    def _watch_job(self, known: Job) -> None:
        executor = self._executor(known.target)
        job, status = self._hand_over(executor, known)
        if status is None:
            self._stop(executor, job)
            status = executor.status(job.handle)
            if status.unattended:
                executor.submit(job.handle, self.ledger.document(job.id, "request"))
        seen = retries.advance(job, status, self._clock(), self._first_wait, self._stopwatch.seconds(job))
        if seen.ends_start and not job.kind.is_here:
            self._keep_log(executor, job)
        if seen.retry_at is not None and job.kind.makes_cluster:
            executor.delete(job.handle)  # its cluster would hold its nodes next to those of the next start
        self._move(job, seen, status.ended)
        if seen.state == JobState.FAILED and job.kind.makes_cluster:
            self._tidy(executor, job)
        if seen.state == JobState.RUNNING and not job.kind.is_here:
            self._progress.look(executor, job)
        if seen.state in {JobState.PENDING, JobState.QUEUED} and job.state is JobState.RUNNING:
            self._progress.drop(job)

    def _tidy(self, executor: Executor, job: Job) -> None:
        """Let the executor end what a start left there that failed. An error ends up in the manager's log."""
        try:
            executor.stop(job.handle)
        except SP500Error as error:
            print(f"{job.id}: what it left could not be removed: {error}", file=sys.stderr, flush=True)

    def _hand_over(self, executor: Executor, job: Job) -> tuple[Job, Status | None]:
        """Submit the job to its executor. Returns the job, and its final status if it was refused."""
        if job.submitted or job.stop_asked is not None:
            return job, None
        try:
            executor.submit(job.handle, self._request(job))
        except Refused as error:
            return job, Status(JobState.FAILED, str(error))
        self._change(job, {"submitted": True})
        return replace(job, submitted=True), None

    def _request(self, job: Job) -> Request:
        """Return what the executor gets for the present start."""
        devices = job.devices if self._machine.gpus else None
        return job.kind.start(self.ledger.document(job.id, "request"), job.id, job.handle, devices)

    def _stop(self, executor: Executor, job: Job) -> None:
        """Stop a job that should end. Repeated at each look until it has."""
        if not (job.stop_asked is not None or retries.is_late(job, self._stopwatch.seconds(job))):
            return
        if job.kind.makes_cluster and not log_archive.has_log(log_archive.folder(self.folder, job)):
            self._keep_log(executor, job)  # its pods go at once, and their logs with them
        executor.stop(job.handle)

    def _move(self, job: Job, seen: retries.Transition, ended: float | None) -> None:
        """Write down a transition; a start that has ended has cost until then, however late that is seen."""
        now = self._clock()
        last = replace(job, started=seen.started, placed=seen.placed)
        self._change(job, seen.columns(), (last, now if ended is None else min(ended, now)) if seen.releases else None)

    def _change(self, job: Job, changes: dict[str, object], release: tuple[Job, float] | None = None) -> None:
        """Write down what changed, and with it what a start that has ended used, and until when."""
        if "reason" in changes:
            changes = changes | {"reason": one_line(str(changes["reason"]))}
        if all(getattr(job, name) == value for name, value in changes.items()):
            return
        with self.ledger.writing() as entry:
            if entry.change(job, self._clock(), **changes) and release:
                entry.release(*release)

    def _keep_log(self, executor: Executor, job: Job) -> None:
        folder = log_archive.folder(self.folder, job)
        try:
            log_archive.keep(folder, executor.logs(job.handle, role=None, tail=log_archive.LINES, follow=False))
        except ResourcesError as error:
            log_archive.note(folder, f"the log could not be kept: {error}")


def _waiting(job: Job, now: float) -> schedule.Waiting:
    return schedule.Waiting(
        job.id,
        job.demand,
        on=ELSEWHERE if job.queued_elsewhere else job.kind.name,
        priority=job.priority,
        number=job.number,
        project=job.project,
        cost=budget.highest_cost(job.hourly, job.seconds),
        currency=job.currency,
        seconds=job.seconds,
        # A time that lies further ahead than any wait was written before the clock was set back.
        not_before=job.not_before if job.not_before <= now + retries.LONGEST_WAIT else 0.0,
    )


def _busy(job: Job) -> schedule.Busy:
    ends = math.inf if job.seconds is None or job.claimed is None else job.claimed + job.seconds
    return schedule.Busy(job.demand, ends, job.kind.name)
