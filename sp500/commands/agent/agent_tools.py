"""The six tools of an agent over the queue: each accepts a checked request, and returns a text and the same as data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from sp500.agent import answer_text, requests
from sp500.agent.limits import Limits
from sp500.commands import forecast, rate_table
from sp500.commands.jobs import job_progress, queue_flags, status
from sp500.commands.jobs import list as listing
from sp500.commands.submission import submit, text
from sp500.config import Frozen
from sp500.errors import ConfigError, LimitExceeded, ResourcesError
from sp500.jobs import client
from sp500.jobs.queue import settings as queue_settings
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.queue import Queue
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import Role
from sp500.jobs.target import Target, find
from sp500.report import costs

# Columns of a table.
WIDTH = 160
LAST_LINES, LAST_CHANGES = 5, 20
# For a script to read its flags, on a busy machine.
SECONDS_TO_CHECK = 60
Answer = tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class AgentContext:
    """Place and limits of an agent's jobs."""

    queue: Queue
    runs: Path
    """Folder of the runs, for forecasts; jobs find it in SP500_RUNS_DIR."""
    on: tuple[str, ...]
    """The places that are allowed, the default first."""
    project: str
    """Project of every job of an agent: its budget pays, and only its jobs may be stopped."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of `submit` that say how places are reached."""
    limits: Limits = field(default_factory=Limits)
    """Resources that the project's jobs may use if no cost limits them."""


def submit_job(context: AgentContext, request: requests.SubmitJob) -> Answer:
    """Queue a job after the experiment's own script has accepted its flags."""
    on = request.on or context.on[0]
    if on not in context.on:
        raise ConfigError(f"on: {on} is not allowed here; this server submits to {', '.join(context.on)}")
    target = find(on)
    job = _apply_limits(context, request, target)
    folder = Path.cwd()
    if outside := [value for value in request.values if not (folder / value).resolve().is_relative_to(folder)]:
        raise ConfigError(f"arguments: {outside[0]} leads out of the project by a link; name a file inside it")
    if target.is_here:  # a cluster's image and runs may be others
        _check_flags(job.argv[1:])
    place_flags = {key: value for key, value in context.flags.items() if key != "namespace" or target.makes_cluster}
    flags = submit.flags_with_options()(
        **place_flags, **job.model_dump(exclude_unset=True), on=on, project=context.project
    )
    (submitted,) = submit.submit_jobs(flags, [flags.spec()], for_agent=True)
    follow = [f"{tool} {submitted.job.id}" for tool in ("job_status", "job_logs", "stop_job")]
    submitted = replace(submitted, follow=follow)
    return text.text(submitted), submitted.plain()


def job_status(context: AgentContext, request: requests.JobStatus) -> Answer:
    """Return the job's state now, or at its end if that comes in time."""
    return _describe(context, _wait_for(context, request.id, request.wait))


def job_logs(context: AgentContext, request: requests.JobLogs) -> Answer:
    """Return the last lines of the job's log."""
    context.queue.manage()
    job = context.queue.job(request.id)
    role = Role(request.role) if request.role else None
    lines, before = answer_text.limit_lines(list(client.logs(context.queue, job.id, role=role, tail=request.tail)))
    note = f"({before} of these lines do not fit into one answer and are left out)" if before else ""
    nothing = "" if lines else f"(nothing is printed yet: {job.id} is {job.state}: {job.reason})"
    plain = {"id": job.id, "state": str(job.state), "lines": lines, "left_out": before}
    return "\n".join(filter(None, [note, *lines, nothing])), plain


def stop_job(context: AgentContext, request: requests.StopJob) -> Answer:
    """Ask it to end, and report whether it has."""
    job = context.queue.job(request.id)
    if job.project != context.project:
        raise ConfigError(
            f"id: {job.id} is of project {job.project}; agents stop jobs of project {context.project} alone"
        )
    context.queue.stop([job.id])
    return _describe(context, _wait_for(context, job.id, request.wait))


def list_jobs(context: AgentContext, request: requests.ListJobs) -> Answer:
    """Return the newest jobs as a table."""
    context.queue.manage()
    matches = [job for job in context.queue.ledger.jobs() if request.state in {None, job.state}]
    shown = matches[-request.limit :]
    progress = listing.progress_of(context.queue, shown)
    jobs = [queue_flags.plain(job, progress=progress[job.id]) for job in shown]
    older = len(matches) - len(shown)
    plain = {"jobs": jobs, "older": older}
    if not shown:
        return f"no jobs{f' that are {request.state}' if request.state else ''}", plain
    more = f"\n{older} older ones are not shown" if older else ""
    return listing.table(shown, progress, WIDTH) + more, plain


def estimate_speedup(context: AgentContext, request: requests.EstimateSpeedup) -> Answer:
    """Return the forecast of `sp500 jobs forecast`."""
    rates = rate_table.read(None)
    result = forecast.build_forecast(forecast.Forecast(**request.model_dump(), runs_dir=context.runs), rates)
    return costs.text(result, rates), dict(result)


@dataclass(frozen=True)
class Tool:
    """A tool and its hints. Its description is the docstring of its request."""

    act: Callable[[AgentContext, Any], Answer]
    takes: type[Frozen]
    hints: Mapping[str, bool]


READS = {"read_only_hint": True, "open_world_hint": False}
STOPS = {"read_only_hint": False, "destructive_hint": True, "idempotent_hint": True}
TOOLS = {
    "submit_job": Tool(submit_job, requests.SubmitJob, {"read_only_hint": False, "destructive_hint": False}),
    "job_status": Tool(job_status, requests.JobStatus, READS),
    "job_logs": Tool(job_logs, requests.JobLogs, READS),
    "stop_job": Tool(stop_job, requests.StopJob, STOPS),
    "list_jobs": Tool(list_jobs, requests.ListJobs, READS),
    "estimate_speedup": Tool(estimate_speedup, requests.EstimateSpeedup, READS),
}


def _wait_for(context: AgentContext, id: str, seconds: float) -> Job:
    """Wait for a job's end, or so many seconds, and return the job."""
    context.queue.manage()
    try:
        return context.queue.wait([id], seconds)[0]
    except LimitExceeded:
        return context.queue.job(id)


def _describe(context: AgentContext, job: Job) -> Answer:
    job, state = context.queue.refresh(job)
    lines, _ = answer_text.limit_lines(client.last_lines(context.queue, job, LAST_LINES))
    progress = job_progress.read(context.queue, job, live=True)
    history = status.changes(context.queue, job)[-LAST_CHANGES:]
    answer = {**queue_flags.plain(job, state, progress), "history": history, "log": lines}
    return status.text(context.queue, job, state, progress, lines), answer


def _apply_limits(context: AgentContext, request: requests.SubmitJob, target: Target) -> JobSpec:
    """Return the job, within the limits of this server and of the place. Raises SP500Error."""
    context.limits.check_jobs(sum(job.project == context.project for job in context.queue.ledger.jobs(unfinished=True)))
    context.limits.check_disk(context.runs)
    requests.check_workers(request, *_most(context, target, request))
    job = requests.job(request, here=target.is_here)
    if not target.is_here:
        return job
    room = client.read_settings(context.queue.folder).room(target.name, queue_settings.machine())
    return job.model_copy(update={"memory": context.limits.worker_memory(request, job.workers, room)})


def _most(context: AgentContext, target: Target, request: requests.SubmitJob) -> tuple[float, str]:
    """Return how many workers a place holds, and what says so. Raises ConfigError if it is not configured."""
    file, cpus = context.queue.folder / queue_settings.FILE, request.cpus or 1
    on, room = target.name, client.read_settings(file.parent).room(target.name, queue_settings.machine())
    if target.is_here:
        return room.cpus // cpus, f"this machine ({room.text()})"
    uncounted = [name for name in ("cpus", "gpus", "memory") if getattr(request, name) and getattr(room, name) == inf]
    if uncounted:
        raise ConfigError(
            f"{', '.join(uncounted)}: the capacity of {on} is not configured; leave it out, or write "
            f"capacity: {{{on}: ...}} into {file}"
        )
    if room.cpus < inf:
        return room.cpus // cpus, f"the capacity of {on} ({room.text()})"
    options = {name: context.flags[name] for name in target.options.model_fields if name in context.flags}
    if most := target.most_workers(target.options(**options)):
        return most
    raise ConfigError(f"on: the capacity of {on} is not configured; write capacity: {{{on}: {{cpus: N}}}} into {file}")


def _check_flags(words: tuple[str, ...]) -> None:
    """Have an experiment, the first word, read its flags and do nothing. Raises ConfigError with its message."""
    try:
        done = subprocess.run(  # noqa: S603 - a list of words
            [sys.executable, "-P", "-m", "sp500.cli", *words, "--print-config"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=SECONDS_TO_CHECK,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ResourcesError(f"{words[0]} did not read its flags within {SECONDS_TO_CHECK} s; try again") from error
    if done.returncode:
        output, _ = answer_text.limit_lines(re.sub(r"[│╭╮╰╯─]+", "", done.stderr).splitlines())
        lines = [line.strip() for line in output if line.strip()]
        raise ConfigError("\n".join(["arguments: the experiment refuses them:", *lines]))
