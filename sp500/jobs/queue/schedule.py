"""Scheduling: which jobs start now, and why the others wait, as a pure function of the queue.

Priority goes first, then who came first. A job that finds no room keeps the first room that will be enough for it, and
a later, smaller one may start before it only if that does not delay it: EASY backfilling (Lifka, "The ANL/IBM SP
Scheduling System", 1995), which needs estimates; a job without one is assumed to run for ever. So a wide job is not
starved by narrow ones, and a narrow one need not wait behind a wide one for nothing.

A budget is a project's, per day. A job whose cost would pass it waits, and no job waits behind it. A job whose cost
is not known counts as all that is left, so at most one such job runs over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sp500.formatting import amount
from sp500.jobs.resources import Resources


@dataclass(frozen=True)
class Waiting:
    """A job in the queue."""

    id: str
    demand: Resources
    on: str = ""
    """Whose room it needs."""
    priority: int = 0
    number: int = 0
    """Its place in the order of submission."""
    project: str = ""
    cost: float | None = 0.0
    """Highest cost, in the budget's currency; None if it is not known."""
    currency: str = "USD"
    seconds: float | None = None
    """Expected run time."""
    not_before: float = 0.0
    """Earliest time of the next try after a failure, in seconds since 1970."""


@dataclass(frozen=True)
class Busy:
    """A job that holds resources."""

    demand: Resources
    ends: float = math.inf
    """Expected time of its end."""
    on: str = ""
    """Whose room it has."""


@dataclass
class Plan:
    """Decision on the waiting jobs."""

    start: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """The reason that each of the others waits; empty for one that waits for the time of its next try."""


@dataclass
class _Room:
    """Free resources, and those that are kept for the first job that waits for room."""

    free: Resources
    busy: list[Busy]
    holder: str = ""
    since: float = math.inf
    """Time when the holder will have its room."""
    spare: Resources = field(default_factory=Resources)
    """Resources that the holder leaves over then."""

    def take(self, demand: Resources, ends: float) -> None:
        """Let a job have its part."""
        self.free -= demand
        self.busy.append(Busy(demand, ends))
        if not ends <= self.since < math.inf:
            self.spare -= demand

    def admits(self, demand: Resources, ends: float) -> bool:
        """Return whether a job may start without delaying the holder."""
        harmless = not self.holder or ends <= self.since < math.inf or self.spare.holds(demand)
        return harmless and self.free.holds(demand)

    def keep(self, job: Waiting) -> None:
        """Reserve for `job` the first room that will be enough."""
        self.holder, coming = job.id, self.free
        for busy in sorted(self.busy, key=lambda busy: busy.ends):
            coming += busy.demand
            if coming.holds(job.demand):
                self.since, self.spare = busy.ends, coming - job.demand
                return


def plan(
    queue: Iterable[Waiting],
    busy: Sequence[Busy],
    capacity: Mapping[str, Resources],
    left: Mapping[str, float],
    budgets: Mapping[str, float],
    *,
    now: float,
) -> Plan:
    """Return what starts at `now` (seconds since 1970).

    `capacity`: all the room there is, by `on`. `left`: what each project that has a budget may still spend today;
    `budgets`: what it may spend in a day.
    """
    rooms = {on: _Room(room, [job for job in busy if job.on == on]) for on, room in capacity.items()}
    for room in rooms.values():
        room.free -= sum((job.demand for job in room.busy), Resources())
    money = dict(left)
    result = Plan()
    for job in sorted(queue, key=lambda job: (-job.priority, job.number)):
        room = rooms[job.on]
        reason = _blocking_reason(job, capacity[job.on], money, budgets, now)
        ends = math.inf if job.seconds is None else now + job.seconds
        if reason is None and room.admits(job.demand, ends):
            room.take(job.demand, ends)
            if job.project in money:
                money[job.project] -= math.inf if job.cost is None else job.cost
            result.start.append(job.id)
            continue
        result.reasons[job.id] = _explain_wait(job, room) if reason is None else reason
        if reason is None and not room.holder:
            room.keep(job)
    return result


def _blocking_reason(
    job: Waiting, capacity: Resources, left: Mapping[str, float], budgets: Mapping[str, float], now: float
) -> str | None:
    """Return the reason that a job would wait even in an empty queue. None if it would not."""
    if job.not_before > now:
        return ""  # the reason that its last start left there stays
    if not capacity.holds(job.demand):
        return f"will never fit: needs {capacity.short_of(job.demand).replace(' free', ' in all')}"
    budget, daily = left.get(job.project, math.inf), budgets.get(job.project, math.inf)
    if job.cost is not None and job.cost > daily:
        cost, most = (amount(value, job.currency) for value in (job.cost, daily))
        return f"will never start: costs up to {cost}, and the budget of {job.project} is {most} a day"
    if (job.cost is None and budget <= 0) or (job.cost or 0.0) > budget:
        cost = "an unknown amount" if job.cost is None else f"up to {amount(job.cost, job.currency)}"
        have = amount(max(budget, 0.0), job.currency)
        return f"the budget of {job.project} has {have} left today (UTC), and the job costs {cost}"
    return None


def _explain_wait(job: Waiting, room: _Room) -> str:
    if not room.free.holds(job.demand):
        return f"waits for {room.free.short_of(job.demand)}"
    return f"waits behind {room.holder}, which needs the room first"
