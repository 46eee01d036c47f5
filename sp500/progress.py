"""Progress of a run: one type for its files and its log, the estimate of the remaining time, and the line of the log.

The line is written (`RunProgress.line`) and read (`parse`) only here, so that the two cannot drift apart:

    2026-01-02T10:00:00Z epoch 7 of at most 25, 1240 samples/s, best 0.981, 183 s left: train 1.01 valid 0.98
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

Kind = Literal["epoch", "trial", "fold", "arm"]
AT_MOST = " of at most "
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?"
LINE = re.compile(
    rf"(?P<time>\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (?P<kind>{'|'.join(get_args(Kind))}) "
    rf"(?P<done>\d+)(?P<limit>/|{AT_MOST})(?P<total>\d+)"
    rf"(?:, (?P<rate>{NUMBER}) samples/s)?(?:, best (?P<best>{NUMBER}))?(?:, (?P<left>\d+) s left)?(?:: .*)?"
)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run at one moment; times in seconds since 1970 (UTC)."""

    kind: Kind
    """The unit that is counted."""
    done: int
    """Epochs (trials, ...) that have ended, those of earlier attempts included."""
    total: int
    at_most: bool
    """True if the run may end sooner, for example by early stopping."""
    samples_per_second: float | None
    """Windows trained on per second, since this attempt began; None before its first epoch or trial has ended."""
    best_loss: float | None
    """Lowest mean validation loss so far."""
    ends: float | None
    """Expected end of the last epoch or trial, at the speed of this attempt; None before its first has ended."""
    updated: float
    """Time when the last one ended, or this attempt began."""

    def eta_seconds(self, now: float) -> float | None:
        """Return the seconds until `ends`; None if that has passed: what runs is slower than before, or hangs."""
        return None if self.ends is None or now > self.ends else self.ends - now

    def line(self, text: str) -> str:
        """Return the line of a log, in which `text` says more."""
        return f"{datetime.fromtimestamp(self.updated, UTC):%Y-%m-%dT%H:%M:%SZ} {self.describe(text)}"

    def describe(self, text: str) -> str:
        """Return the same without the time; rates and losses to at least three digits."""
        seconds_left = self.eta_seconds(self.updated)
        parts = [
            self.counted,
            *([] if self.samples_per_second is None else [f"{_round_rate(self.samples_per_second)} samples/s"]),
            *([] if self.best_loss is None else [f"best {self.best_loss:.6g}"]),
            *([] if seconds_left is None else [f"{seconds_left:.0f} s left"]),
        ]
        return ", ".join(parts) + (f": {text}" if text else "")

    @property
    def counted(self) -> str:
        """'epoch 7/25', or 'epoch 7 of at most 25'."""
        return f"{self.kind} {self.done}{AT_MOST if self.at_most else '/'}{self.total}"

    def dump(self) -> str:
        """Return JSON, which `load` reads."""
        return json.dumps(asdict(self))


def load(text: str) -> RunProgress:
    """Return the inverse of `RunProgress.dump`. Raises ValueError."""
    try:
        return RunProgress(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"not the progress of a run: {error}") from error


def parse(lines: Iterable[str]) -> RunProgress | None:
    """Return what the last line of progress says; None if there is none among the lines of a log."""
    matches = [match for text in lines if (match := LINE.fullmatch(text))]
    if not matches:
        return None
    last = matches[-1]
    updated = datetime.fromisoformat(last["time"]).timestamp()
    return RunProgress(
        kind=last["kind"],  # type: ignore[arg-type] # the pattern has only these words
        done=int(last["done"]),
        total=int(last["total"]),
        at_most=last["limit"] == AT_MOST,
        samples_per_second=float(last["rate"]) if last["rate"] else None,
        best_loss=float(last["best"]) if last["best"] else None,
        ends=updated + int(last["left"]) if last["left"] else None,
        updated=updated,
    )


@dataclass(frozen=True)
class Unit:
    """One epoch (trial, ...) that has ended."""

    finished: datetime | None
    """When; None if an earlier version did not say."""
    seconds: float | None = None
    """Seconds that it lasted; None if that says nothing of the others."""
    train_seconds: float | None = None
    """Of these, in training steps."""
    samples: int = 0
    """Windows trained on."""
    loss: float | None = None
    """Mean validation loss. One that is not finite is never the best."""
    running: int = 0
    """Others that were running when it ended, each half done on average."""


class Meter:
    """Measures how fast a run goes, from its epochs or trials as they end.

    Only those count that began after `since`, the start of this attempt (seconds since 1970): an earlier
    attempt may have had another machine, so it says nothing about the speed of this one.
    """

    def __init__(
        self, kind: Kind, total: int, *, since: float, at_most: bool = False, parallel: bool = False, more: int = 0
    ) -> None:
        """Start to count; `parallel`: units run side by side, so their speed is that by the wall clock.

        `more`: units that follow the `total`, as when a model is trained for several seeds.
        """
        self._kind, self._total, self._more = kind, total, more
        self._at_most, self._parallel, self._since = at_most, parallel, since
        self._count, self._samples, self._busy, self._training = 0, 0, 0.0, 0.0
        self._best, self._updated, self._running = math.inf, since, 0

    def add(self, unit: Unit) -> None:
        """Count one more unit that has ended or reported."""
        if unit.loss is not None and math.isfinite(unit.loss):
            self._best = min(self._best, unit.loss)
        self._running = unit.running
        if unit.finished is None:
            return
        finished = unit.finished.timestamp()
        self._updated = max(self._updated, finished)
        if unit.seconds is not None and finished - unit.seconds >= self._since:
            self._count += 1
            self._samples += unit.samples
            self._busy += unit.seconds
            self._training += unit.train_seconds or unit.seconds

    def progress(self, done: int) -> RunProgress:
        """Return the run's progress after `done` units."""
        elapsed = self._updated - self._since
        busy, training = (elapsed, elapsed) if self._parallel else (self._busy, self._training)
        ended = self._count + self._running / 2
        units_left = self._total - done + self._more - self._running / 2
        return RunProgress(
            kind=self._kind,
            done=done,
            total=self._total,
            at_most=self._at_most,
            samples_per_second=self._samples / training if self._samples and training > 0 else None,
            best_loss=self._best if math.isfinite(self._best) else None,
            ends=self._updated + busy / ended * units_left if self._count else None,
            updated=self._updated,
        )


def _round_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
