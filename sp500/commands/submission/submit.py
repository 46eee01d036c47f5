"""`sp500 jobs submit`: queue a job, or many, on a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml
from pydantic import create_model

from sp500.commands import rate_table
from sp500.commands.jobs import queue_flags
from sp500.commands.submission import job_flags, pricing
from sp500.commands.submission.text import Submitted, mask_request, plan, text
from sp500.console import entry
from sp500.console.output import run_command
from sp500.errors import ConfigError
from sp500.jobs import client
from sp500.jobs.queue import settings as queue_settings
from sp500.jobs.queue.job import NewJob
from sp500.jobs.queue.queue import Queue
from sp500.jobs.spec import JobSpec
from sp500.jobs.target import On, Options, Target, find, names
from sp500.schema import validate


class Submit(job_flags.JobFlags):
    """Queue a job; or, with a --file that has a list of jobs, all of them or none."""

    on: On = "local"
    """local: this machine; ray: a Ray cluster that is up; kuberay: a Ray cluster made for the job on Kubernetes."""
    fallback: bool = False
    """Run on this machine if the cluster cannot be reached."""
    rates: Path | None = None
    """Table of rates. Default: cluster/rates.yaml if it exists."""
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

    @property
    def options(self) -> Options:
        """Those of the target."""
        kind = find(self.on).options
        return kind(**{name: getattr(self, name) for name in kind.model_fields})


@cache
def flags_with_options() -> type[Submit]:
    """Return the flags, with those of all targets."""
    fields: dict[str, Any] = {
        name: (field.annotation, field) for on in names() for name, field in find(on).options.model_fields.items()
    }
    model: type[Submit] = create_model("Submit", __base__=Submit, __doc__=Submit.__doc__, **fields)
    return model


def main(argv: Sequence[str]) -> int:
    """Submit and return the exit code."""

    def run() -> tuple[str, int]:
        flags, specs = _parse(argv)
        return _submit(flags, specs), 0

    return run_command(run, only_json="--json" in job_flags.split(argv)[0])


def _parse(argv: Sequence[str]) -> tuple[Submit, list[JobSpec]]:
    """Return the flags, and the jobs of the command line or of the file."""
    words, command = job_flags.split(argv)
    model, file = flags_with_options(), entry.flag(words, "--file")
    settings = job_flags.read_file(file) if file else {}
    if "jobs" not in settings:
        flags = job_flags.parse(model, argv, "jobs submit")
        return flags, [flags.spec()]
    assert file is not None
    # What a job does not have holds for all of them: where they run, and what that costs.
    place = {key: value for key, value in settings.items() if key in model.model_fields.keys() - JobSpec.model_fields}
    settings = {key: value for key, value in settings.items() if key not in place}
    flags = job_flags.parse(model, [*_without(words, "--file"), "--", "jobs"], "jobs submit", place)
    set_too = flags.spec().model_dump(exclude={"argv", "name"}, exclude_defaults=True)
    if command or set_too:
        flag = f"--{next(iter(set_too)).replace('_', '-')}" if set_too else "a command after --"
        raise ConfigError(f"--file {file} has a list of jobs, and {flag} describes one; write it into the file")
    return flags, _batch(file, settings)


def _batch(file: str, settings: Mapping[str, object]) -> list[JobSpec]:
    """Return the jobs of a file. Keys next to `jobs:` are defaults of each job, or hold for all."""
    jobs, shared = settings["jobs"], {key: value for key, value in settings.items() if key != "jobs"}
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise ConfigError(f"--file {file}: jobs: expected a list of jobs, each with its argv")
    for_all = {"on" if key is True else key for job in jobs for key in job} & flags_with_options().model_fields.keys()
    if wrong := sorted(for_all - JobSpec.model_fields.keys()):
        raise ConfigError(f"--file {file}: {wrong[0]} holds for all jobs of a file. Put it next to jobs:")
    return [validate(JobSpec, shared | job, f"--file {file}: jobs[{at}]") for at, job in enumerate(jobs)]


def _without(words: list[str], flag: str) -> list[str]:
    """Return the words without a flag and its value."""
    rest = [word for word in words if not word.startswith(f"{flag}=")]
    at = rest.index(flag) if flag in rest else len(rest)
    return rest[:at] + rest[at + 2 :]


def _submit(flags: Submit, specs: list[JobSpec]) -> str:
    if flags.dry_run:
        queue, target = client.open_queue(flags.state_dir), find(flags.on)
        return _dry(target, client.prepare(queue.folder, specs, target, flags.options, _estimator(flags, queue)), flags)
    submitted = submit_jobs(flags, specs)
    if flags.json_output:
        plans = [job.plain() for job in submitted]
        return queue_flags.dump_json(plans[0] if len(plans) == 1 else {"jobs": plans})
    if len(submitted) > 1:
        return "\n".join(f"{job.job.id} is queued: {job.plan['command']}" for job in submitted)
    return text(submitted[0])


def submit_jobs(flags: Submit, specs: Sequence[JobSpec], *, for_agent: bool = False) -> list[Submitted]:
    """Queue the jobs, all or none, and describe each. Raises SP500Error for a job that can never start."""
    queue = client.open_queue(flags.state_dir)
    estimator = _estimator(flags, queue, for_agent=for_agent)
    added = client.submit(
        queue, specs, flags.on, flags.options, estimator, strict=flags.strict, fallback=flags.fallback
    )
    waiting = [job for job in queue.ledger.jobs(unfinished=True) if job.waits]
    return [plan(queued, spec, estimator, waiting) for queued, spec in zip(added, specs, strict=True)]


def _estimator(flags: Submit, queue: Queue, *, for_agent: bool = False) -> pricing.PricedEstimator:
    settings, table = client.read_settings(queue.folder), rate_table.read(flags.rates)
    if settings.budgets and table and table.currency != settings.currency:
        raise ConfigError(
            f"{queue.folder / queue_settings.FILE}: budgets are in {settings.currency}, rates in {table.currency};"
            " use one currency for both"
        )
    return pricing.build_estimator(
        table, flags.node_type, queue.ledger.jobs(), currency=settings.currency, for_agent=for_agent
    )


def _dry(target: Target, jobs: Sequence[NewJob], flags: Submit) -> str:
    """Return what would be sent: manifests for Kubernetes, else the request.

    Secrets of the environment are not shown.
    """
    preview = None if flags.json_output else target.preview([job.request for job in jobs])
    if preview is not None:
        return preview
    rows = [{"id": job.id, "target": job.target, "request": mask_request(job.request, job.spec)} for job in jobs]
    if flags.json_output:
        return queue_flags.dump_json(rows[0] if len(rows) == 1 else {"jobs": rows})
    return yaml.safe_dump_all(rows, sort_keys=False, width=110)
