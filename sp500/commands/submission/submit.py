"""`sp500 jobs submit`: queue a job, or many, for this machine, a Ray cluster or Kubernetes."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
import yaml

from sp500.commands import rate_table
from sp500.commands.jobs import queue_flags
from sp500.commands.jobs.manage import load
from sp500.commands.submission import job_flags, pricing
from sp500.commands.submission.pricing import Estimator
from sp500.commands.submission.render import ray_cluster
from sp500.commands.submission.request import Place, prepare_job
from sp500.commands.submission.text import Submitted, mask_request, plan, text
from sp500.console import entry
from sp500.console.output import run_command
from sp500.errors import ConfigError, LimitExceeded, ResourcesError
from sp500.jobs.manifests import manifest, rules
from sp500.jobs.queue import budget
from sp500.jobs.queue import settings as queue_settings
from sp500.jobs.queue.job import NewJob
from sp500.jobs.queue.queue import Queue
from sp500.jobs.queue.settings import On, QueueSettings
from sp500.jobs.spec import KUBERNETES_ONLY, JobSpec
from sp500.schema import validate


class Submit(job_flags.JobFlags):
    """Queue a job; or, with a --file that has a list of jobs, all of them or none."""

    on: On = "local"
    """local: this machine; ray: a Ray cluster that is up; kuberay: a Ray cluster made for the job on Kubernetes."""
    fallback: bool = False
    """Run on this machine where the cluster cannot be reached."""
    cluster: Path = Path("cluster/raycluster.yaml")
    """With --on kuberay: file with the RayCluster whose pods the job gets."""
    context: str | None = None
    """With --on kuberay: context of your kubeconfig. Default: the current one."""
    address: str | None = None
    """With --on ray: address of the dashboard. Default: $RAY_ADDRESS."""
    rates: Path | None = None
    """Table of rates. Default: cluster/rates.yaml where it is there."""
    node_type: str = ""
    """Node type in that table whose rate a worker costs. Default: chosen by the table's rules."""
    strict: bool = False
    """Refuse a job that exceeds today's budget of its project; without this it waits."""
    dry_run: bool = False
    """Print what would be submitted, and submit nothing."""
    state_dir: Path | None = None
    """Folder of the queue. Default: $XDG_STATE_HOME/sp500, or ~/.local/state/sp500."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """JSON on stdout; all else goes to stderr."""


def main(argv: Sequence[str]) -> int:
    """Submit and return the exit code."""

    def run() -> tuple[str, int]:
        flags, specs = _parse(argv)
        return _submit(flags, specs), 0

    return run_command(run, only_json="--json" in job_flags.split(argv)[0])


def _parse(argv: Sequence[str]) -> tuple[Submit, list[JobSpec]]:
    """The flags, and the jobs of the command line or of the file."""
    words, command = job_flags.split(argv)
    file = entry.flag(words, "--file")
    settings = job_flags.read_file(file) if file else {}
    if "jobs" not in settings:
        flags = job_flags.parse(Submit, argv, "jobs submit")
        return flags, [flags.spec()]
    assert file is not None
    # What a job does not have is said of all of them: where they run, and what that costs.
    place = {key: value for key, value in settings.items() if key in Submit.model_fields.keys() - JobSpec.model_fields}
    settings = {key: value for key, value in settings.items() if key not in place}
    flags = job_flags.parse(Submit, [*_without(words, "--file"), "--", "jobs"], "jobs submit", place)
    set_too = flags.spec().model_dump(exclude={"argv", "name"}, exclude_defaults=True)
    if command or set_too:
        flag = f"--{next(iter(set_too)).replace('_', '-')}" if set_too else "a command after --"
        raise ConfigError(f"--file {file} has a list of jobs, and {flag} describes one; write it into the file")
    return flags, _batch(file, settings)


def _batch(file: str, settings: Mapping[str, object]) -> list[JobSpec]:
    """The jobs of a file. Keys next to `jobs:` are defaults of each job, or hold for all."""
    jobs, shared = settings["jobs"], {key: value for key, value in settings.items() if key != "jobs"}
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise ConfigError(f"--file {file}: jobs: expected a list of jobs, each with its argv")
    for_all = {"on" if key is True else key for job in jobs for key in job} & Submit.model_fields.keys()
    if names := sorted(for_all - JobSpec.model_fields.keys()):
        raise ConfigError(f"--file {file}: {names[0]} holds for all jobs of a file. Put it next to jobs:")
    return [validate(JobSpec, shared | job, f"--file {file}: jobs[{at}]") for at, job in enumerate(jobs)]


def _without(words: list[str], flag: str) -> list[str]:
    """The words but for a flag and its value."""
    rest = [word for word in words if not word.startswith(f"{flag}=")]
    at = rest.index(flag) if flag in rest else len(rest)
    return rest[:at] + rest[at + 2 :]


def _submit(flags: Submit, specs: list[JobSpec]) -> str:
    if flags.dry_run:
        return _dry(_ready(flags, specs)[-1], as_json=flags.json_output)
    submitted = submit_jobs(flags, specs)
    if flags.json_output:
        plans = [job.plain() for job in submitted]
        return queue_flags.dump_json(plans[0] if len(plans) == 1 else {"jobs": plans})
    if len(submitted) > 1:
        return "\n".join(f"{job.job.id} is queued: {job.plan['command']}" for job in submitted)
    return text(submitted[0])


def submit_jobs(flags: Submit, specs: Sequence[JobSpec], *, for_agent: bool = False) -> list[Submitted]:
    """Queue the jobs, all or none, and describe each. Raises SP500Error for a job that can never start."""
    queue, settings, estimator, jobs = _ready(flags, specs, for_agent=for_agent)
    _check(jobs, settings, queue)
    short = budget.find_unaffordable(jobs, queue.ledger, settings, time.time())
    if short and flags.strict:
        raise LimitExceeded(f"--strict: {next(iter(short.values()))}")
    queue.add(jobs)
    added = zip(queue.ledger.jobs([job.id for job in jobs]), specs, strict=True)
    waiting = [job for job in queue.ledger.jobs(unfinished=True) if job.waits]
    return [plan(job, spec, estimator, waiting, shortfall=short.get(job.id, "")) for job, spec in added]


def _ready(
    flags: Submit, specs: Sequence[JobSpec], *, for_agent: bool = False
) -> tuple[Queue, QueueSettings, Estimator, list[NewJob]]:
    """The queue, its settings, the estimator, and the jobs as the queue takes them."""
    queue = queue_flags.queue(flags.state_dir)
    place = _place(flags, specs, queue)
    settings = load(queue.folder / queue_settings.FILE)
    table = rate_table.read(flags.rates)
    if settings.budgets and table and table.currency != settings.currency:
        raise ConfigError(
            f"{queue.folder / queue_settings.FILE}: budgets are in {settings.currency}, rates in {table.currency};"
            " give both in one currency"
        )
    estimator = pricing.build_estimator(
        table, flags.node_type, queue.ledger.jobs(), currency=settings.currency, for_agent=for_agent
    )
    return queue, settings, estimator, [prepare_job(spec, place, estimator) for spec in specs]


def _place(flags: Submit, specs: Sequence[JobSpec], queue: Queue) -> Place:
    """Where the jobs go. Raises ResourcesError for a cluster that is out of reach where no fallback was asked for."""
    here = Place("local", {})
    if flags.on == "local":
        _warn_unused(specs)
        return here
    place = Place(flags.on, {}, flags.context, flags.address, queue.folder / "tokens")
    if flags.on == "kuberay":
        cluster = ray_cluster(flags.cluster)
        rules.check(cluster)
        place = replace(place, cluster=cluster)
    if flags.dry_run:
        return place
    try:
        place.reach(specs, queue)
    except ResourcesError as error:
        if not flags.fallback:
            raise ResourcesError(f"{error}\n  --fallback would run it on this machine") from error
        print(f"--fallback: on this machine, since there is no way to the cluster: {error}", file=sys.stderr)
        _warn_unused(specs)
        return here
    return place


def _warn_unused(specs: Sequence[JobSpec]) -> None:
    """Warn of settings without a meaning on this machine: the same file may be used everywhere."""
    names = {name for spec in specs for name in spec.model_dump(exclude_defaults=True)}
    if unused := sorted(names & {*KUBERNETES_ONLY, "working_dir"}):
        print(f"on this machine these have no meaning: {', '.join(unused)}", file=sys.stderr)


def _check(jobs: Sequence[NewJob], settings: QueueSettings, queue: Queue) -> None:
    """Refuse jobs that can never start, and warn of a project that looks like one with a budget."""
    machine = queue_settings.machine()
    for job in jobs:
        room = settings.room(job.target["on"], machine)
        if not (job.queued_elsewhere or room.holds(job.demand)):
            raise ResourcesError(
                f"{job.name}: takes {job.demand.text()}, and there are {room.text()} in all; give fewer --workers or"
                f" less --cpus, --gpus and --memory, or raise capacity in {queue.folder / queue_settings.FILE}"
            )
    for project in sorted({job.project for job in jobs} - set(settings.budgets) if settings.budgets else ()):
        if near := difflib.get_close_matches(project, settings.budgets, n=1):
            print(f"project {project} has no budget; did you mean {near[0]}?", file=sys.stderr)


def _dry(jobs: Sequence[NewJob], *, as_json: bool) -> str:
    """What would be sent: manifests for Kubernetes, else the request; secrets of the environment are not shown."""
    if jobs[0].target["on"] == "kuberay" and not as_json:
        return manifest.text([document for job in jobs for document in job.request["documents"]])
    rows = [{"id": job.id, "target": job.target, "request": mask_request(job.request, job.spec)} for job in jobs]
    if as_json:
        return queue_flags.dump_json(rows[0] if len(rows) == 1 else {"jobs": rows})
    return yaml.safe_dump_all(rows, sort_keys=False, width=110)
