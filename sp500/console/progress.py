"""Progress of long work on stderr: a bar with the time left in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Counts `total` units of work: `with Progress("epoch", 25) as progress: progress.advance("loss 0.42")`.

    `done`: units done by an earlier attempt.
    """

    def __init__(self, unit: str, total: int, console: Console | None = None, *, done: int = 0) -> None:
        self._console = console or Console(file=sys.stderr)
        self._unit, self._total, self._done = unit, total, done
        self._first: float | None = None
        self._counted = 0
        self._bar: Bar | None = None
        if self._console.is_terminal:
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

    def advance(self, text: str, done: int | None = None) -> None:
        """One more unit is done, or `done` of them altogether; `text` says how it went."""
        self._done = self._done + 1 if done is None else done
        text = "".join(sign for sign in text if sign.isprintable())  # names of tickers may hold a terminal's commands
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=text)
            return
        # The first unit pays for imports and data: the rate is that of the others.
        self._first = self._first or time.monotonic()
        others, self._counted = self._counted, self._counted + 1
        rate = (time.monotonic() - self._first) / others if others else None
        left = ""
        if rate is not None:
            left = f"  {float(f'{1 / max(rate, 1e-6):.2g}'):g}/s, {rate * (self._total - self._done):.0f} s left"
        self._console.print(
            f"{self._unit} {self._done}/{self._total}  {text}{left}", highlight=False, markup=False, soft_wrap=True
        )
