"""State changes, posted as JSON to the receivers that jobs name; no job waits for it.

Each change is in the ledger until the receiver has accepted it: at least once, in order, over failures of either side.
The number of the change is in the message, so that a receiver recognises one that comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sp500.jobs.queue.ledger import Ledger

# For all of an answer: a receiver that sends a byte now and then would otherwise hold its courier for hours.
SECONDS_TO_ANSWER = 10.0
FIRST_WAIT, LONGEST_WAIT = 2.0, 300.0
# A day of tries. Tries are counted, since the wall clock may step forward by a day.
MOST_TRIES = 295


def deliver(ledger: Ledger, clock: Callable[[], float], wait: float = FIRST_WAIT, url: str | None = None) -> None:
    """Post what is due, in order; what is not delivered is tried again later, and with it all that follows it.

    `url`: only what goes there.
    """
    away: set[str] = set()
    for notice in ledger.notices():
        # A time that lies further ahead than any wait was written before the clock was set back.
        waits = clock() < notice.not_before <= clock() + LONGEST_WAIT
        if url not in {None, notice.url} or notice.url in away or waits:
            away.add(notice.url)
            continue
        accepted = post(notice.url, notice.message)
        with ledger.writing() as entry:
            if accepted or notice.tries + 1 >= MOST_TRIES:
                entry.remove_notice(notice)
            else:
                away.add(notice.url)
                entry.put_off(notice, clock() + min(wait * 2**notice.tries, LONGEST_WAIT))


def post(url: str, message: dict[str, object], seconds: float = SECONDS_TO_ANSWER) -> bool:
    """Send a notice and return whether the receiver accepted it: an answer of 200 to 299 in time.

    A redirect does not count as accepted: followed, the message would become a GET without it.
    """
    import aiohttp

    async def send() -> bool:
        headers = {"User-Agent": "sp500"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), trust_env=True) as session,
            session.post(url, json=message, headers=headers, allow_redirects=False) as answer,
        ):
            return 200 <= answer.status < 300

    try:
        return asyncio.run(send())
    except (OSError, aiohttp.ClientError, ValueError):  # TimeoutError is an OSError
        return False
