"""A job as the queue knows it: the request and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sp500.jobs.executor import Request
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState
from sp500.jobs.target import Place, Target, find


@dataclass(frozen=True, kw_only=True)
class Order:
    """A job as it was submitted."""

    id: str
    name: str
    target: Place
    """The place that it runs on."""
    project: str
    priority: int
    queued_elsewhere: bool
    """True if another queue, such as Kueue, decides when it starts, so that capacity here does not count."""
    demand: Resources
    seconds: float | None
    """Longest expected run time. None if unknown."""
    hourly: float
    """Cost of an hour."""
    currency: str = "USD"
    """ISO 4217 code of the currency of its costs."""
    retries: int
    """Starts after a failure that are the queue's to make."""
    deadline: float | None = None
    """Seconds after which the queue ends it; None if its executor does."""
    notify: str | None = None
    """URL that its changes of state are posted to."""

    @property
    def kind(self) -> Target:
        """The target that it runs on."""
        return find(self.target["on"])


@dataclass(frozen=True, kw_only=True)
class NewJob(Order):
    """A job to be queued."""

    spec: dict[str, Any]
    request: Request
    """The request for the executor."""

    @classmethod
    def of(cls, order: Order, **changed: Any) -> NewJob:
        """Return the same order, changed, as a new job."""
        return cls(**{each.name: getattr(order, each.name) for each in fields(Order)} | changed)


@dataclass(frozen=True, kw_only=True)
class Job(Order):
    """A job as the ledger knows it; times in seconds since 1970."""

    number: int
    state: JobState
    reason: str
    starts: int
    failures: int
    submitted: bool
    """True if the executor has accepted the present start."""
    stop_asked: float | None
    """Time of the first request to stop it."""
    not_before: float
    devices: tuple[int, ...] = field(default=())
    """Numbers of the GPUs of this machine that it holds."""
    exit_code: int | None = None
    created: float = 0.0
    claimed: float | None = None
    """Time when the present start got its resources."""
    placed: float | None = None
    """Time when a worker of the present start first had a node, if known."""
    started: float | None = None
    ended: float | None = None
    paid: float = 0.0
    """Cost of its ended starts."""

    @property
    def waits(self) -> bool:
        """True if it waits for its turn here; one that Kueue holds back has been handed over."""
        return self.state == JobState.QUEUED and not self.submitted

    @property
    def held_since(self) -> float | None:
        """Time from which the present start is billed; None if it holds nothing yet, or has ended."""
        if not self.submitted or self.claimed is None:
            return None
        return self.kind.billed_since(self.claimed, self.placed, self.started)

    def cost(self, now: float) -> float:
        """Return what its starts have cost so far."""
        since, until = self.held_since, now if self.ended is None else self.ended
        return self.paid + (0.0 if since is None else self.hourly * max(until - since, 0.0) / 3600)

    @property
    def handle(self) -> str:
        """The executor's name for the present start: each start has its own."""
        return self.id if self.starts <= 1 else f"{self.id}-{self.starts}"


@dataclass(frozen=True)
class Notice:
    """A change of state that is not delivered yet."""

    number: int
    url: str
    at: float
    tries: int
    not_before: float
    message: dict[str, object]


@dataclass(frozen=True)
class Use:
    """Time that a start held its resources, kept also when its job is deleted: a budget is spent all the same."""

    id: str
    project: str
    begin: float
    finish: float
    hourly: float
