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
    """What was asked for."""

    id: str
    name: str
    target: Place
    """Where it runs."""
    project: str
    priority: int
    queued_elsewhere: bool
    """Whether another queue, such as Kueue, decides when it starts, so that capacity here does not count."""
    demand: Resources
    seconds: float | None
    """Longest expected run time. None if unknown."""
    hourly: float
    """What an hour of it costs."""
    currency: str = "USD"
    """ISO 4217 code of the currency of its costs."""
    retries: int
    """Starts after a failure that are the queue's to make."""
    deadline: float | None = None
    """Seconds after which the queue ends it; None where its executor does."""
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
    """What the executor gets."""

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
    """Whether the executor has taken the present start."""
    stop_asked: float | None
    """When somebody asked for its end."""
    not_before: float
    devices: tuple[int, ...] = field(default=())
    """Numbers of the GPUs of this machine that it holds."""
    exit_code: int | None = None
    created: float = 0.0
    claimed: float | None = None
    """When the present start took its resources."""
    placed: float | None = None
    """When a worker of the present start first had a node, as far as that is seen."""
    started: float | None = None
    ended: float | None = None
    paid: float = 0.0
    """What its ended starts have cost."""

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn here; one that Kueue holds back has been handed over."""
        return self.state == JobState.QUEUED and not self.submitted

    @property
    def held_since(self) -> float | None:
        """When the present start took what it is billed for; None where it has nothing yet, or has ended."""
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
    """A change of state that a receiver has not taken yet."""

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
