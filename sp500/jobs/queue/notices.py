"""State changes, posted as JSON to whoever asked for them; apart from the jobs, which never wait for it.

Each change is in the ledger until the receiver has taken it: at least once, in order, over failures of either side.
The number of the change is in the message, so that a receiver can tell one that comes again.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from sp500.jobs.queue.ledger import Ledger

SECONDS_TO_ANSWER = 10.0
FIRST_WAIT, LONGEST_WAIT = 2.0, 300.0
# A receiver that was away for so long has been given up by its owner.
SECONDS_TO_TRY = 86400.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is no acceptance: followed, the message would become a GET without it."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(_NoRedirects)


def deliver(ledger: Ledger, clock: Callable[[], float], wait: float = FIRST_WAIT) -> None:
    """Post what is due, in order; what is not taken is tried again later, and with it all that follows it."""
    away: set[str] = set()
    for notice in ledger.notices():
        if notice.url in away or notice.not_before > clock():
            away.add(notice.url)
            continue
        taken = post(notice.url, notice.message)
        now = clock()
        with ledger.writing() as entry:
            if taken or now > notice.at + SECONDS_TO_TRY:
                entry.delivered(notice)
            else:
                away.add(notice.url)
                entry.put_off(notice, now + min(wait * 2**notice.tries, LONGEST_WAIT))


def post(url: str, message: dict[str, object]) -> bool:
    """Whether the receiver took it, which is an answer of 200 to 299 in time."""
    data, headers = json.dumps(message).encode(), {"Content-Type": "application/json", "User-Agent": "sp500"}
    try:
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - http or https, as the job's field demands
        with OPENER.open(request, timeout=SECONDS_TO_ANSWER) as answer:
            return bool(200 <= answer.status < 300)
    except (OSError, HTTPException, ValueError):  # a status of 400 or more is an OSError
        return False
