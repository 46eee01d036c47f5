"""Progress of long work on stderr: a bar with the time left in a terminal, elsewhere at most about a line a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sp500.progress import Kind, Meter, Unit

BETWEEN = 1.0
"""Seconds between two lines that say nothing new."""


class Progress:
    """Counts `total` units of work: `with Progress("epoch", 25) as progress: progress.advance("loss 0.42")`.

    `done`: units done by an earlier attempt; `earlier`: these, where the best of them counts; `meter`: where other than
    one unit after the other, from now on.
    """

    def __init__(
        self,
        unit: Kind,
        total: int,
        console: Console | None = None,
        *,
        done: int = 0,
        earlier: Iterable[Unit] = (),
        meter: Meter | None = None,
    ) -> None:
        # Asked of the stream itself: rich treats a file as a terminal if FORCE_COLOR is set, as CI systems do.
        self._console = console or Console(file=sys.stderr, force_terminal=sys.stderr.isatty())
        self._done = done
        self._meter = meter or Meter(unit, total, since=time.time())
        for done_unit in earlier:
            self._meter.add(done_unit)
        self._best = self._meter.progress(done).best_loss
        self._printed, self._waiting = -BETWEEN, ""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: Bar | None = None
        if self._console.is_terminal and self._console.is_interactive:  # not with TERM=dumb
            columns = (
                TextColumn(unit, markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        self._flush()

    def advance(self, text: str, done: int | None = None, unit: Unit | None = None, *, news: bool = False) -> None:
        """Count one more unit as done, or `done` altogether; `text` says how it went, `unit` how fast.

        A line that comes within a second of another waits for its end, and gives way to the next one, unless it has
        `news`, such as a failure, or a new best.
        """
        self._done = self._done + 1 if done is None else done
        text = "".join(sign for sign in text if sign.isprintable())  # names of tickers may hold a terminal's commands
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=text)
            return
        self._meter.add(unit or Unit(datetime.now(UTC)))
        progress = self._meter.progress(self._done)
        news, self._best = news or progress.best_loss != self._best, progress.best_loss
        with self._lock:
            self._waiting = progress.line(text)
            wait = 0.0 if news else self._printed + BETWEEN - time.monotonic()
            if wait > 0 and not self._timer:
                self._timer = threading.Timer(wait, self._flush)
                self._timer.daemon = True
                self._timer.start()
        if wait <= 0:
            self._flush()

    def _flush(self) -> None:
        """Print the line that waits, if there is one."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            if self._waiting:
                self._console.print(self._waiting, highlight=False, markup=False, soft_wrap=True)
                self._printed, self._waiting = time.monotonic(), ""
