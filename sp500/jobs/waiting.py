"""Waiting for a cluster with a deadline, telling meanwhile what it is waiting for."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

from sp500.errors import ResourcesError

SECONDS_BETWEEN = 2


def until(
    done: Callable[[], bool],
    reasons: Callable[[], list[str]],
    *,
    what: str,
    seconds: float,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `done()`; meanwhile `say` each new line of `reasons()`.

    Raises ResourcesError with all reasons when it takes longer than `seconds`.
    """
    said: set[str] = set()
    for _ in range(ceil(seconds / SECONDS_BETWEEN)):
        if done():
            return
        for reason in reasons():
            if reason not in said:
                said.add(reason)
                say(f"  waiting for {what}: {reason}")
        pause(SECONDS_BETWEEN)
    if not done():
        why = reasons() or ["the cluster gives no reason"]
        raise ResourcesError(f"{what} did not get ready within {seconds:g} s:\n  " + "\n  ".join(why))
