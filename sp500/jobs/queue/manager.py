"""The queue's manager: gives each job its turn, hands it to its executor, and writes down what becomes of it.

All that it knows is in the ledger, so it may be killed at any point. A start is first claimed there, in one
transaction, then handed over, then marked as handed over; a manager that finds it claimed but not marked hands it over
once more, which an executor takes as done. Several managers are as safe as one, and waste time; so the first one holds
a lock.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

from sp500.errors import Refused, ResourcesError, SP500Error
from sp500.jobs.document import Document
from sp500.jobs.executor import Executor
from sp500.jobs.queue import budget, kept_logs, notices, outcome, schedule
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.ledger import Entry, Ledger
from sp500.jobs.queue.resources import UNCOUNTED, Resources
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.state import JobState, Status

SECONDS_BETWEEN_TURNS = 0.2
# A cluster is asked less often than this machine, and still well within the time in which a user wants to see why.
SECONDS_BETWEEN_LOOKS = {"local": 0.0, "ray": 1.0, "kuberay": 2.0}
# Clusters that are looked at beside each other: one that does not answer must not hold up the others.
THREADS = 8
# Each knock at a cluster that does not answer takes its time.
MOST_FAULTS = 2
# The place of jobs whose room is Kueue's to give.
KUEUE = "kueue"


class Manager:
    """Manages the jobs of one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        executor: Callable[[Document], Executor],
        settings: Callable[[], QueueSettings],
        machine: Resources,
        *,
        first_wait: float = outcome.FIRST_WAIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder` keeps the logs of ended jobs; `executor` makes the one of a target; `first_wait`: before a retry."""
        self.ledger, self.folder = ledger, folder
        self._executor, self._settings, self._machine = executor, settings, machine
        self._first_wait, self._clock = first_wait, clock
        self._looks: dict[str, Future[None]] = {}
        self._looked: dict[str, float] = {}
        self._courier: Future[None] | None = None

    def run(self, idle_seconds: float, stop: Event) -> None:
        """Manage until `stop`, or until nothing was left to do for `idle_seconds`."""
        with ThreadPoolExecutor(THREADS) as pool:
            busy = self._clock()
            while not stop.wait(SECONDS_BETWEEN_TURNS) and self._clock() - busy <= idle_seconds:
                if self.turn(pool):
                    busy = self._clock()

    def turn(self, pool: ThreadPoolExecutor) -> bool:
        """Claim what may start, look after what has, and tell of it; whether anything is left to do."""
        jobs = self._claimed()
        active: dict[str, list[Job]] = {}
        for job in jobs:
            if not job.waits:
                active.setdefault(json.dumps(job.target, sort_keys=True), []).append(job)
        for key, members in active.items():
            look = self._looks.get(key)
            due = self._looked.get(key, 0.0) + SECONDS_BETWEEN_LOOKS[members[0].target["on"]]
            if (look is None or look.done()) and self._clock() >= due:
                self._looked[key] = self._clock()
                self._looks[key] = pool.submit(self._look_after, members)
        undelivered = bool(self.ledger.notices())
        if undelivered and (self._courier is None or self._courier.done()):
            self._courier = pool.submit(notices.deliver, self.ledger, self._clock)
        return bool(jobs) or undelivered

    def _claimed(self) -> list[Job]:
        """The unfinished jobs, after those whose turn it is were claimed."""
        now, settings = self._clock(), self._settings()
        with self.ledger.writing() as entry:
            jobs, uses = entry.jobs(unfinished=True), entry.uses(budget.midnight(now))
            waiting, active = [job for job in jobs if job.waits], [job for job in jobs if not job.waits]
            left = budget.left(settings.budgets, uses, active, now)
            rooms = {job.target["on"]: settings.room(job.target["on"], self._machine) for job in waiting}
            rooms[KUEUE] = UNCOUNTED
            held = [_busy(job) for job in active if not job.queued_elsewhere]
            plan = schedule.plan(map(_waiting, waiting), held, rooms, left, settings.budgets, now=now)
            used = {device for job in active for device in job.devices}
            devices = [device for device in range(int(self._machine.gpus)) if device not in used]
            self._write(entry, waiting, plan, devices, now)
            return entry.jobs(unfinished=True)

    def _write(self, entry: Entry, queue: Sequence[Job], plan: schedule.Plan, devices: list[int], now: float) -> None:
        for job in queue:
            if job.stop_asked is not None:
                entry.change(job, now, state=str(JobState.STOPPED), reason="stopped before its start", ended=now)
            elif job.id in plan.start:
                count = int(job.demand.gpus) if job.target["on"] == "local" else 0
                own, devices[:count] = devices[:count], []
                entry.change(
                    job, now, state=str(JobState.PENDING), reason="its turn has come", starts=job.starts + 1,
                    submitted=False, claimed=now, started=None, devices=own,
                )  # fmt: skip
            elif (reason := plan.reasons[job.id]) and reason != job.reason:
                entry.change(job, now, reason=reason)

    def _look_after(self, jobs: Sequence[Job]) -> None:
        """Start, stop and ask after the jobs of one target; its trouble is told by them, and holds up no other."""
        why, faults = "", 0
        for job in jobs:
            if faults < MOST_FAULTS:
                try:
                    self._look_after_one(job)
                    continue
                except SP500Error as error:
                    why = str(error)
                except Exception as error:  # noqa: BLE001 - a slip of ours must not end the manager of all jobs
                    traceback.print_exc()
                    why = f"{type(error).__name__}: {error}, a fault of sp500's ({self.folder.parent}/manager.log)"
                # This machine is always there; a cluster that failed twice is taken to be away from all its jobs.
                faults += job.target["on"] != "local"
            self._change(job, {"reason": f"cannot be asked: {why}"})

    def _look_after_one(self, found: Job) -> None:
        executor = self._executor(found.target)
        job, seen = self._handed_over(executor, found)
        if seen is None:
            self._stop(executor, job)
            seen = executor.status(job.handle)
        changes = outcome.changes(job, seen, self._clock(), self._first_wait)
        if JobState(str(changes["state"])).finished and job.target["on"] != "local":
            self._keep_log(executor, job)
        self._change(job, changes, seen.ended)

    def _handed_over(self, executor: Executor, job: Job) -> tuple[Job, Status | None]:
        """The job, with the executor; and its end where that refused it."""
        if job.submitted or job.stop_asked is not None:
            return job, None
        request = self.ledger.document(job.id, "request")
        if job.target["on"] == "local" and self._machine.gpus:
            request["environment"]["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.devices))
        try:
            executor.submit(job.handle, request)
        except Refused as error:
            return job, Status(JobState.FAILED, str(error))
        self._change(job, {"submitted": True})
        return replace(job, submitted=True), None

    def _stop(self, executor: Executor, job: Job) -> None:
        """End a job that shall end, as often as it takes."""
        if not (job.stop_asked is not None or outcome.late(job, self._clock())):
            return
        if job.target["on"] == "kuberay" and not kept_logs.kept(self.folder / job.id):
            self._keep_log(executor, job)  # its pods go at once, and their logs with them
        executor.stop(job.handle)

    def _change(self, job: Job, changes: dict[str, object], ended: float | None = None) -> None:
        """Write down what changed; a start that has ended has cost until then, however late that is seen."""
        now = self._clock()
        if all(getattr(job, name) == value for name, value in changes.items()):
            return
        with self.ledger.writing() as entry:
            over = JobState(str(changes.get("state", job.state)))
            let_go = over.finished or (over == JobState.QUEUED and changes.get("submitted") is False)
            if entry.change(job, now, **changes) and let_go:
                began = changes.get("started", job.started)
                entry.release(replace(job, started=began), now if ended is None else min(ended, now))  # type: ignore[arg-type]

    def _keep_log(self, executor: Executor, job: Job) -> None:
        folder = self.folder / job.id
        try:
            kept_logs.keep(folder, executor.logs(job.handle, role=None, tail=kept_logs.LINES, follow=False))
        except ResourcesError as error:
            kept_logs.note(folder, f"the log could not be kept: {error}")


def _waiting(job: Job) -> schedule.Waiting:
    return schedule.Waiting(
        job.id,
        job.demand,
        on=KUEUE if job.queued_elsewhere else job.target["on"],
        priority=job.priority,
        number=job.number,
        project=job.project,
        price=budget.price(job.hourly, job.seconds),
        seconds=job.seconds,
        not_before=job.not_before,
    )


def _busy(job: Job) -> schedule.Busy:
    ends = math.inf if job.seconds is None or job.claimed is None else job.claimed + job.seconds
    return schedule.Busy(job.demand, ends, job.target["on"])
