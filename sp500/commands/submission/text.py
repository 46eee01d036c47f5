"""Output of `submit`: where a job goes, its resources, when it starts, how long it lasts, and how to follow it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from sp500 import formatting
from sp500.commands.jobs import queue_flags
from sp500.commands.submission.pricing import PricedEstimator
from sp500.jobs.client import Queued, with_variables
from sp500.jobs.executor import Request
from sp500.jobs.names import script_of
from sp500.jobs.queue import budget
from sp500.jobs.queue.job import Job
from sp500.jobs.spec import PROJECT, WORLD_SIZE, JobSpec
from sp500.jobs.target import Target
from sp500.runs.experiments import DISTRIBUTED

AT_ONCE = "as soon as there is room"


class Plan(TypedDict):
    """Expectations of a job, for JSON."""

    command: str
    place: str
    takes: str
    world_size: int | None
    queued_before: int
    starts: str
    seconds: list[float | None]
    """From and to; None if it is not known."""
    cost: list[float | None]
    currency: str


@dataclass(frozen=True)
class Submitted:
    """A job that was queued, and what is expected of it."""

    job: Job
    plan: Plan
    follow: list[str]
    """Commands, or calls of tools, that follow the job."""

    def plain(self) -> dict[str, object]:
        """Return the same for JSON."""
        return {**queue_flags.plain(self.job), "plan": self.plan, "follow": self.follow}


def plan(queued: Queued, spec: JobSpec, estimator: PricedEstimator, waiting: Sequence[Job]) -> Submitted:
    """Return the job that was queued, and what is expected of it."""
    job, shortfall = queued.job, queued.shortfall
    shortest, longest = estimator.seconds(spec, job.kind)
    rivals = [other for other in waiting if other.kind is job.kind]
    before = [other for other in rivals if (-other.priority, other.number) < (-job.priority, job.number)]
    return Submitted(
        job,
        plan={
            "command": shlex.join(spec.argv),
            "place": job.kind.describe(job.target),
            "takes": job.demand.text(),
            "world_size": world_size(spec, job.kind),
            "queued_before": len(before),
            "starts": f"when the budget lets it: {shortfall}" if shortfall else "",
            "seconds": [shortest, longest],
            "cost": [budget.highest_cost(job.hourly, shortest), budget.highest_cost(job.hourly, longest)],
            "currency": job.currency,
        },
        follow=[f"sp500 jobs {verb} {job.id}" for verb in ("status", "logs --follow", "wait", "stop")],
    )


def text(submitted: Submitted) -> str:
    """Return the same for a reader."""
    expected = submitted.plan
    before = expected["queued_before"]
    rows = {
        "command": expected["command"],
        "takes": expected["takes"],
        **_workers(expected),
        "starts": expected["starts"] or (f"after {before} that wait before it" if before else AT_ONCE),
        "lasts": _range(expected["seconds"], formatting.seconds) or "unknown; set it with --expected SECONDS",
        "costs": _range(expected["cost"], lambda cost: formatting.amount(cost or 0.0, expected["currency"]))
        or "unknown",
        "follow": "\n            ".join(submitted.follow),
    }
    return "\n".join(
        [
            f"{submitted.job.id} is queued, to run on {expected['place']}",
            *(f"  {key:<9} {row}" for key, row in rows.items()),
        ]
    )


def _workers(expected: Plan) -> dict[str, str]:
    """Return what the world size means to the command: nothing to an experiment that does not train on workers."""
    size, script = expected["world_size"], script_of(shlex.split(expected["command"]))
    if not size or script.parent.name != "experiments":
        return {"gets": f"{WORLD_SIZE}={size}"} if size else {}
    trains = script.stem in DISTRIBUTED
    return {"trains on": f"{formatting.some(size, 'worker')} by default ({WORLD_SIZE})"} if trains else {}


def world_size(spec: JobSpec, target: Target) -> int | None:
    """Return the world size that the job gives its command; None if it gives none."""
    value = with_variables(spec, target).env.get(WORLD_SIZE, "")
    return int(value) if value.isdecimal() else None


def mask_request(request: Request, spec: Mapping[str, Any]) -> Request:
    """Return the request with the values that the job itself sets, and only the names of what it has of the shell."""
    if "environment" not in request:
        return request
    own = spec["env"] | {
        key: request["environment"][key] for key in (WORLD_SIZE, PROJECT) if key in request["environment"]
    }
    names = sorted(set(request["environment"]) - set(own))
    return {key: value for key, value in request.items() if key != "environment"} | {
        "environment": own,
        "of_this_shell": " ".join(names),
    }


def _range(span: Sequence[float | None], say: Callable[[float | None], str]) -> str:
    """Return both ends as `say` formats them; empty if the upper one is unknown."""
    low, high = span
    if high is None:
        return ""
    if low is None:
        return f"up to {say(high)}"
    return say(high) if low == high else f"{say(low)} to {say(high)}"
