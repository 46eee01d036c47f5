"""What projects may still spend today: pure sums over the ledger. A day is one of UTC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sp500.jobs.queue.job import Job, NewJob, Use
from sp500.jobs.queue.ledger import Ledger
from sp500.jobs.queue.settings import QueueSettings

DAY, HOUR = 86400.0, 3600.0


def price(hourly: float, seconds: float | None) -> float | None:
    """What so many seconds cost at most; None where it costs something and nobody knows how long it takes."""
    if hourly == 0:
        return 0.0
    return None if seconds is None else hourly * seconds / HOUR


def midnight(now: float) -> float:
    """The beginning of the day of `now`, both in seconds since 1970."""
    return now - now % DAY


def over(jobs: Iterable[NewJob], ledger: Ledger, settings: QueueSettings, now: float) -> str:
    """Which of these jobs would pass its project's budget today, in words; empty for none."""
    unfinished = ledger.jobs(unfinished=True)
    # Those that wait are counted as if they ran: they come first.
    remaining = left(settings.budgets, ledger.uses(midnight(now)), unfinished, now)
    for job in jobs:
        cost, have = price(job.hourly, job.seconds), remaining.get(job.project, math.inf)
        if cost is None and have < math.inf:
            return f"{job.name} has a price that nobody can tell, and {job.project} a budget; give --expected"
        if cost is not None and cost > have:
            money = f"{cost:.2f} {settings.currency}"
            return f"{job.name} costs up to {money}, and {job.project} has {have:.2f} left today (UTC)"
        remaining[job.project] = have - (cost or 0.0)
    return ""


def left(budgets: Mapping[str, float], uses: Iterable[Use], active: Iterable[Job], now: float) -> dict[str, float]:
    """What each project with a budget may still promise to new jobs.

    Counted are what ended starts used of this day, and what the active ones will have used at their expected end; one
    without an expected end counts as all that is left.
    """
    today, remaining = midnight(now), dict(budgets)

    def take(project: str, begin: float, finish: float, hourly: float) -> None:
        """Subtract the part of a use that lies in this day or after it."""
        if project in remaining and hourly:
            remaining[project] -= hourly * max(finish - max(begin, today), 0.0) / HOUR

    for use in uses:
        take(use.project, use.begin, use.finish, use.hourly)
    for job in active:
        # A start that its executor has not taken yet costs nothing so far.
        begin = job.claimed if job.submitted and job.claimed is not None else now
        take(job.project, begin, math.inf if job.seconds is None else max(begin + job.seconds, now), job.hourly)
    return {project: max(amount, 0.0) for project, amount in remaining.items()}
