"""Budgets: what projects may still spend today, as pure sums over the ledger. A day is one of UTC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sp500.jobs.queue import schedule
from sp500.jobs.queue.job import Job, NewJob, Use
from sp500.jobs.queue.ledger import Ledger
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.resources import UNCOUNTED, Resources

DAY, HOUR = 86400.0, 3600.0


def highest_cost(hourly: float, seconds: float | None) -> float | None:
    """Return what so many seconds cost at most; None if it costs something and its duration is unknown."""
    if hourly == 0:
        return 0.0
    return None if seconds is None else hourly * seconds / HOUR


def midnight(now: float) -> float:
    """Return the beginning of the day of `now`, both in seconds since 1970."""
    return now - now % DAY


def find_unaffordable(jobs: Sequence[NewJob], ledger: Ledger, settings: QueueSettings, now: float) -> dict[str, str]:
    """Return the new jobs that only their budget would keep waiting: reasons by id. Earlier jobs come first."""
    unfinished = ledger.jobs(unfinished=True)
    active = [job for job in unfinished if not job.waits]
    left = remaining_budgets(settings.budgets, ledger.uses(midnight(now)), active, now)
    queue: list[Job | NewJob] = [*(job for job in unfinished if job.waits), *jobs]
    waiting = [
        schedule.Waiting(
            job.id,
            Resources(),
            number=number,
            project=job.project,
            cost=highest_cost(job.hourly, job.seconds),
            currency=job.currency,
        )
        for number, job in enumerate(queue)
    ]
    reasons = schedule.plan(waiting, [], {"": UNCOUNTED}, left, settings.budgets, now=now).reasons
    return {job.id: f"{job.name}: {reasons[job.id]}" for job in jobs if job.id in reasons}


def remaining_budgets(
    budgets: Mapping[str, float], uses: Iterable[Use], active: Iterable[Job], now: float
) -> dict[str, float]:
    """Return what each project with a budget may still promise to new jobs.

    Counted are what ended starts used of this day, and what the active ones will have used at their expected end. One
    without an expected end, or past it, may run for ever, so it counts as all that is left.
    """
    today, remaining = midnight(now), dict(budgets)

    def take(project: str, begin: float, finish: float, hourly: float) -> None:
        """Subtract the part of a use that lies in this day or after it."""
        if project in remaining and hourly:
            remaining[project] -= hourly * max(finish - max(begin, today), 0.0) / HOUR

    for use in uses:
        take(use.project, use.begin, use.finish, use.hourly)
    for job in active:
        begin = now if job.held_since is None else job.held_since
        end = math.inf if job.seconds is None else begin + job.seconds
        take(job.project, begin, math.inf if end < now else end, job.hourly)
    return {project: max(amount, 0.0) for project, amount in remaining.items()}
