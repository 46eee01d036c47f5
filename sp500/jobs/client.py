"""The queue from Python: submit jobs, see how they do, wait for them, stop them. Verbs and an agent's tools use it.

Submit a job, and print the end of its log when it has ended:

    queue = client.open_queue()
    (queued,) = client.submit(queue, [JobSpec(argv=("python", "experiments/train.py"), retries=1)])
    (job,) = client.wait(queue, [queued.job.id])
    print(job.state, list(client.logs(queue, job.id, tail=5)))
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError, LimitExceeded, ResourcesError
from sp500.jobs import names
from sp500.jobs.executor import Line, Request
from sp500.jobs.queue import budget
from sp500.jobs.queue import settings as queue_settings
from sp500.jobs.queue.job import Job, NewJob
from sp500.jobs.queue.queue import Queue, new_id
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import Role, Status
from sp500.jobs.target import Options, Target, executors, find
from sp500.schema import read_mapping, validate

IDLE_SECONDS = 30
# Flags of an experiment that name its run.
RUN_NAME = ("--name", "--io.run-name")


class Estimator:
    """Estimates of a job before it runs: it lasts as long as its description says, and is free."""

    currency: str = "USD"
    """ISO 4217 code of the currency of costs."""

    def seconds(self, spec: JobSpec, target: Target) -> tuple[float | None, float | None]:
        """Return how long the job may last, from and to; None if it is not known."""
        expected = spec.expected and min(spec.expected, spec.deadline or spec.expected)
        return expected, expected or spec.deadline

    def hourly(self, spec: JobSpec, target: Target, request: Request) -> float:
        """Return what an hour of it costs."""
        return 0.0


@dataclass(frozen=True)
class Queued:
    """A job that was submitted."""

    job: Job
    shortfall: str
    """The reason that its project's budget lets it wait; empty if it does not."""


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of what is up and what is queued: $XDG_STATE_HOME/sp500, or ~/.local/state/sp500."""
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sp500"


def open_queue(folder: Path | None = None) -> Queue:
    """Return the queue of a folder (default: the user's). Raises ConfigError if there can be none."""
    here = (folder or state_folder()).expanduser().absolute()
    manager = [sys.executable, "-m", "sp500.cli", "jobs", "manage", "--state-dir", str(here)]
    return Queue(here, executors(here), [*manager, "--idle-seconds", str(IDLE_SECONDS)])


def read_settings(folder: Path) -> QueueSettings:
    """Return the settings of a queue's folder, the defaults if it has none. Raises ConfigError with file and key."""
    path = folder / queue_settings.FILE
    fields = read_mapping(path, "queue settings", "capacity, currency and budgets") if path.exists() else {}
    return validate(QueueSettings, fields, str(path))


def submit(
    queue: Queue,
    specs: Sequence[JobSpec],
    on: str = "local",
    options: Options | None = None,
    estimator: Estimator | None = None,
    *,
    strict: bool = False,
    fallback: bool = False,
) -> list[Queued]:
    """Queue these jobs on a target, all or none. `options`: how it is reached.

    `strict`: refuse jobs that exceed today's budget of their project; else they wait. `fallback`: run them on this
    machine if the target cannot be reached. Raises SP500Error for a job that can never start.
    """
    target, settings = find(on), read_settings(queue.folder)
    options = options or target.options()
    target = _reach(queue, specs, target, options, fallback=fallback)
    jobs = prepare(queue.folder, specs, target, options, estimator or Estimator())
    _check_room(jobs, settings, queue)
    short = budget.find_unaffordable(jobs, queue.ledger, settings, time.time())
    if short and strict:
        raise LimitExceeded(f"--strict: {next(iter(short.values()))}")
    queue.add(jobs)
    return [Queued(job, short.get(job.id, "")) for job in queue.ledger.jobs([job.id for job in jobs])]


def prepare(
    folder: Path, specs: Sequence[JobSpec], target: Target, options: Options, estimator: Estimator
) -> list[NewJob]:
    """Return the jobs as the queue of that folder accepts them. Raises ConfigError for what the target cannot do."""
    names = {name for spec in specs for name in spec.model_dump(exclude_defaults=True)}
    if unused := sorted(names & target.ignored):
        print(f"on {target.name} these have no meaning: {', '.join(unused)}", file=sys.stderr)
    return [_prepare(folder, spec, target, options, estimator) for spec in specs]


def with_variables(spec: JobSpec, target: Target) -> JobSpec:
    """Return the job with its project in its environment, and its world size if its command is to train on workers."""
    return spec.model_copy(update={"env": spec.environment if target.trains_on_workers(spec) else spec.labelled})


def _prepare(folder: Path, spec: JobSpec, target: Target, options: Options, estimator: Estimator) -> NewJob:
    id = new_id(spec.name)
    request = target.request(with_variables(spec, target), id, options)
    return NewJob(
        id=id,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        target=target.locate(spec, options, folder),
        request=request,
        project=spec.project,
        priority=spec.priority,
        queued_elsewhere=target.waits_elsewhere(spec),
        demand=target.demand(spec, request),
        seconds=estimator.seconds(spec, target)[1],
        hourly=estimator.hourly(spec, target, request),
        currency=estimator.currency,
        retries=spec.retries,
        deadline=None if target.ends_late_jobs else spec.deadline,
        notify=spec.notify,
    )


def _reach(queue: Queue, specs: Sequence[JobSpec], target: Target, options: Options, *, fallback: bool) -> Target:
    """Return the target, or this machine as the fallback.

    Raises ResourcesError if the target is out of reach without one.
    """
    try:
        target.check([with_variables(spec, target) for spec in specs], options, queue.folder)
    except ResourcesError as error:
        if not fallback:
            raise ResourcesError(f"{error}\n  --fallback would run it on this machine") from error
        print(f"--fallback: running on this machine, because the cluster is out of reach: {error}", file=sys.stderr)
        return find("local")
    return target


def _check_room(jobs: Sequence[NewJob], settings: QueueSettings, queue: Queue) -> None:
    """Refuse jobs that can never start, and warn of a project that looks like one with a budget."""
    machine = queue_settings.machine()
    for job in jobs:
        room = settings.room(job.kind.name, machine)
        if not (job.queued_elsewhere or room.holds(job.demand)):
            raise ResourcesError(
                f"{job.name}: needs {job.demand.text()}, but there are only {room.text()} in all; use fewer --workers"
                f" or less --cpus, --gpus and --memory, or raise capacity in {queue.folder / queue_settings.FILE}"
            )
    for project in sorted({job.project for job in jobs} - set(settings.budgets) if settings.budgets else ()):
        if near := difflib.get_close_matches(project, settings.budgets, n=1):
            print(f"project {project} has no budget; did you mean {near[0]}?", file=sys.stderr)


def rerun(queue: Queue, id: str) -> Job:
    """Queue a job again, as it was, under a new id. An experiment that names its run continues it (--resume)."""
    old = queue.job(id)
    again = new_id(old.name)
    spec, request = (queue.ledger.document(old.id, part) for part in ("spec", "request"))
    if _names_run(spec["argv"], spec.get("settings") or {}):
        request = old.kind.resume(request, spec["argv"])
        spec = spec | {"argv": [*spec["argv"], "--resume"]}
    queue.add([NewJob.of(old, id=again, spec=spec, request=old.kind.start(request, old.id, again))])
    return queue.job(again)


def _names_run(argv: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Return whether a command is an experiment with a run's name, whose folder exists when it starts again."""
    io = settings.get("io")
    flags = {word.partition("=")[0].replace("_", "-") for word in argv}
    named = not flags.isdisjoint(RUN_NAME) or (isinstance(io, dict) and io.get("run_name"))
    is_experiment = names.script_of(argv).parent.name == "experiments"
    return bool(named) and is_experiment and flags.isdisjoint({"--resume", "--overwrite"})


def status(queue: Queue, id: str) -> tuple[Job, Status | None]:
    """Return the job now, and what its executor sees; None if there is nothing to ask."""
    queue.manage()
    return queue.refresh(queue.job(id))


def logs(
    queue: Queue,
    id: str,
    *,
    role: Role | None = None,
    tail: int | None = None,
    follow: bool = False,
    start: int | None = None,
) -> Iterator[str]:
    """Return the lines of a job's log as text; of a cluster made for the job each after its role and pod.

    `tail`: the last ones of each process. `follow`: until it has ended. `start`: of an earlier start, from 1.
    """
    queue.manage()
    job = queue.job(id)
    lines = queue.logs(job, role=role, tail=tail, follow=follow, start=start)
    return (format_line(line, job) for line in lines)


def last_lines(queue: Queue, job: Job, tail: int) -> list[str]:
    """Return the end of what its command printed, else of its other processes, or why there is none to read.

    Ray's pods print a dozen lines each at their start, which would hide the command's.
    """
    for role in (Role.SUBMITTER, None):
        try:
            if lines := [format_line(line, job) for line in queue.logs(job, role=role, tail=tail, follow=False)]:
                return lines
        except ConfigError:  # in InteractiveMode nothing submits the command
            continue
        except ResourcesError as error:
            return [f"the log cannot be read: {error}"]
    return []


def wait(queue: Queue, ids: Sequence[str], seconds: float | None = None) -> list[Job]:
    """Return the jobs when all have ended. Raises LimitExceeded when some have not after `seconds`."""
    return queue.wait(ids, seconds)


def stop(queue: Queue, ids: Sequence[str], seconds: float = 60.0) -> list[Job]:
    """Ask jobs to end, and return them when they have, or after so many seconds; they end all the same."""
    queue.stop(ids)
    try:
        return queue.wait(ids, seconds)
    except LimitExceeded:
        return [queue.job(id) for id in ids]


def format_line(line: Line, job: Job) -> str:
    """Return a line, after its role and pod if a job has several processes."""
    if not job.kind.makes_cluster:
        return line.text
    return f"[{' '.join(filter(None, [line.role, line.source]))}] {line.text}"
