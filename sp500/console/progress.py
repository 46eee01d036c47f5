"""Progress of long work: a bar in a terminal, an output that changes in a notebook, else at most about a line a second.

All but the notebook's is on stderr.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from sp500.progress import Kind, Meter, RunProgress, Unit

BETWEEN = 1.0
"""Seconds between two lines that say nothing new."""
BETWEEN_IN_CELL = 0.25
"""Seconds between two changes of a notebook's output."""
_watched_only: ContextVar[bool] = ContextVar("watched_only", default=False)


@contextmanager
def watched_only() -> Iterator[None]:
    """Show progress in a notebook and in a terminal only, while the block runs: a program's log stays its own."""
    token = _watched_only.set(True)
    try:
        with warnings.catch_warnings():
            # In a notebook tqdm, which Optuna imports, and Ray ask for ipywidgets, for bars and tables not used here.
            warnings.filterwarnings("ignore", "IProgress not found")
            logging.getLogger("ray.widgets").setLevel(logging.WARNING)
            yield
    finally:
        _watched_only.reset(token)


class CellOutput:
    """One output of a notebook's cell, which changes in place. It stays with the cell, as its last state."""

    def __init__(self, shell: Any) -> None:
        self._publisher, self._id, self._shown = shell.display_pub, uuid.uuid4().hex, False

    @classmethod
    def open(cls) -> CellOutput | None:
        """Return an output of the running cell; None outside of a notebook."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython else None
        return cls(shell) if hasattr(shell, "kernel") else None

    def show(self, progress: RunProgress, text: str) -> None:
        """Show a bar and a line."""
        line = progress.describe(text)
        bar = f'<progress value="{progress.done}" max="{progress.total}"></progress>'
        data = {"text/plain": line, "text/html": f"<small>{bar} {html.escape(line)}</small>"}
        self._publisher.publish(data, transient={"display_id": self._id}, update=self._shown)
        self._shown = True


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
        terminal = sys.stderr.isatty()
        quiet = _watched_only.get() and not terminal
        self._console = console or Console(file=sys.stderr, force_terminal=terminal, quiet=quiet)
        self._cell = CellOutput.open()
        self._done = done
        self._meter = meter or Meter(unit, total, since=time.time())
        for done_unit in earlier:
            self._meter.add(done_unit)
        self._best = self._meter.progress(done).best_loss
        self._printed = -BETWEEN
        self._waiting: tuple[RunProgress, str] | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: Bar | None = None
        if self._console.is_terminal and self._console.is_interactive:  # not with TERM=dumb
            # A narrow terminal cuts the text off, and never a number.
            whole, text = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
            columns = (
                TextColumn(unit, markup=False),
                BarColumn(20, table_column=whole),
                MofNCompleteColumn(table_column=whole),
                TimeRemainingColumn(table_column=whole),
                TextColumn("{task.description}", markup=False, table_column=text),
            )
            self._bar = Bar(*columns, console=self._console, expand=True)
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        if self._cell:
            self._cell.show(self._meter.progress(self._done), "")
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
            self._waiting = progress, text
            between = BETWEEN_IN_CELL if self._cell else BETWEEN
            wait = 0.0 if news and not self._cell else self._printed + between - time.monotonic()
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
            if not self._waiting:
                return
            progress, text = self._waiting
            if self._cell:
                self._cell.show(progress, text)
            else:
                self._console.print(progress.line(text), highlight=False, markup=False, soft_wrap=True)
            self._printed, self._waiting = time.monotonic(), None
