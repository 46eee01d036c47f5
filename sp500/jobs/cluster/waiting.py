"""Wait for a cluster with a deadline, and report meanwhile what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from sp500.errors import ResourcesError, Unreachable

SECONDS_BETWEEN = 2


def until(
    done: Callable[[], bool],
    reasons: Callable[[], list[str]],
    *,
    what: str,
    seconds: float,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when `done()`; meanwhile `say` each new line of `reasons()`.

    An API server that does not answer is one of the reasons to wait. The time that a look at the cluster takes counts
    as well. Raises ResourcesError with all reasons after `seconds`.
    """
    end = clock() + seconds
    reported: set[str] = set()
    while True:
        try:
            if done():
                return
            left = end - clock()
            why = reasons()
        except Unreachable as error:
            left, why = end - clock(), [str(error)]
        if left <= 0:
            why = why or ["the cluster gives no reason"]
            raise ResourcesError(f"{what} did not get ready within {seconds:g} s:\n  " + "\n  ".join(why))
        for reason in why:
            if reason not in reported:
                reported.add(reason)
                say(f"  waiting for {what}: {reason}")
        pause(min(SECONDS_BETWEEN, left))
