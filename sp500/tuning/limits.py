"""Limits of trials, and of the time of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from sp500.errors import SP500Error
from sp500.tuning.axes import Space
from sp500.tuning.stopper import StopRule

PackSize = Literal["off", "auto"] | int
ArmName = Literal["sequential", "packed", "ray"]
"""One config at a time in this process; packs in processes of this machine; packs under Ray Tune."""
RING_AGAIN_SECONDS = 5.0
NO_VALIDATION = "data.valid_from_train is 0: a search needs a validation split to choose by"


@dataclass(frozen=True)
class Limits:
    """Limits of trials.

    `pack`: how many configs train together; `timeout`: seconds of a trial; `memory`: bytes of a process with trials;
    `halving`: see `packing.batch_trainer`; `workers`: processes of each trial (0: it shares one); `stop`: what ends
    trials at their rungs, each of which then trains alone.
    """

    pack: PackSize = "auto"
    timeout: float | None = None
    memory: int | None = None
    halving: int = 0
    workers: int = 0
    stop: StopRule | None = None

    def spread(self, slots: int) -> int:
        """Return the number of processes for which packs are made small enough, so that each of `slots` has some.

        One with halving, which decides within a pack: the same space stops the same configs on any number of cores.
        """
        return 1 if self.halving else slots


@dataclass(frozen=True)
class Plan:
    """The plan of a search: `trials` configs, run by `arm`."""

    space: Space
    method: str
    trials: int
    arm: ArmName | Literal["auto"]
    limits: Limits


class TrialTimeout(SP500Error):
    """A trial took longer than the seconds that it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took longer than {seconds:g} s")


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise TrialTimeout in the block when it takes longer; None: never.

    By SIGALRM, which reaches only the main thread and waits for a call into C to return. It rings again, since Python
    ignores an error that is raised within a finalizer or a callback of the garbage collector.
    """
    if seconds is None:
        yield
        return
    assert threading.current_thread() is threading.main_thread()

    def ring(number: int, frame: FrameType | None) -> None:
        raise TrialTimeout(seconds)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, RING_AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
