"""What `submit` tells: where a job goes, what it takes, when it starts, how long it lasts, and how to follow it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from sp500.commands import queue_flags
from sp500.commands.pricing import Expected
from sp500.jobs.document import Document
from sp500.jobs.queue import budget
from sp500.jobs.queue.job import Job
from sp500.jobs.queue.queue import Queue
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState

OF_THE_SHELL = "(as in this shell)"


def plan(queue: Queue, job: Job, spec: JobSpec, expected: Expected, currency: str) -> dict[str, Any]:
    """The job that was queued, and what is expected of it, for JSON."""
    shortest, longest = expected.seconds(spec, job.target["on"])
    before = [
        one for one in queue.ledger.jobs(unfinished=True)
        if one.state == JobState.QUEUED and (-one.priority, one.number) < (-job.priority, job.number)
    ]  # fmt: skip
    return queue_flags.plain(job) | {
        "plan": {
            "command": shlex.join(spec.argv),
            "takes": job.demand.text(),
            "queued_before": len(before),
            "seconds": [shortest, longest],
            "price": [budget.price(job.hourly, shortest), budget.price(job.hourly, longest)],
            "currency": currency,
        },
        "follow": [f"sp500 jobs {verb} {job.id}" for verb in ("status", "logs --follow", "wait", "stop")],
    }


def text(told: dict[str, Any]) -> str:
    """The same for a reader."""
    expected = told["plan"]
    before = expected["queued_before"]
    rows = {
        "command": expected["command"],
        "takes": expected["takes"],
        "starts": f"after {before} that are queued before it" if before else "as soon as there is room",
        "lasts": _range(expected["seconds"], "s") or "nobody knows yet; --expected SECONDS tells the queue",
        "costs": _range(expected["price"], expected["currency"]) or "nobody knows yet",
        "follow": "\n            ".join(told["follow"]),
    }
    return "\n".join(
        [f"{told['id']} is queued, to run on {told['on']}", *(f"  {key:<9} {row}" for key, row in rows.items())]
    )


def masked(request: Document, spec: Document) -> Document:
    """The request with the values that the job itself sets, and only the names of what it has of the shell."""
    if "environment" not in request:
        return request
    own = spec["env"]
    shown = {name: own.get(name, OF_THE_SHELL) for name in sorted(request["environment"])}
    return request | {"environment": shown}


def _range(span: Sequence[float | None], unit: str) -> str:
    low, high = span
    if high is None:
        return ""
    if low is None:
        return f"up to {high:.3g} {unit}"
    return f"{high:.3g} {unit}" if low == high else f"{low:.3g} to {high:.3g} {unit}"
