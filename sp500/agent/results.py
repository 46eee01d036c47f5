"""Results of the tools as plain data, and the limits of log lines in one result."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from sp500.jobs.state import JobState
from sp500.progress import Kind
from sp500.runs.results import Backtest, Basis, ForecastRow

LINES, LINE_LENGTH, LOG_LENGTH = 200, 1_000, 20_000
"""Limits of a log in one answer: lines, characters of each, and characters in all."""
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Result(BaseModel):
    """Base of all answers; a later version may tell more."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Progress(Result):
    """Progress of a running job."""

    kind: Kind
    """The unit that is counted: epoch, trial, fold or arm."""
    done: int
    total: int
    at_most: bool
    """True if it may end sooner, for example by early stopping."""
    samples_per_second: float | None
    """Windows trained on per second, since its present start."""
    best_loss: float | None
    """Lowest mean validation loss so far."""
    eta_seconds: float | None
    """Until the last one should end; null before the first one of this start has ended."""
    updated: float
    """Time when the last one ended."""


class Job(Result):
    """A job; times in seconds since 1970 (UTC)."""

    id: str
    name: str
    on: str
    """Place: local, ray or kuberay."""
    state: JobState
    reason: str
    """One line: why it waits, what it does, how it ended."""
    exit_code: int | None
    """Of its command, once that has ended; 128 and the signal if a signal ended it."""
    project: str
    priority: int
    starts: int
    failures: int
    created: float
    started: float | None
    ended: float | None
    cost: float
    """Of all its starts until now."""
    currency: str
    """Of the cost."""
    progress: Progress | None = None
    """Of a running job, once it says how far it is."""


class Plan(Result):
    """Expectations of a job."""

    command: str
    takes: str
    queued_before: int
    """Jobs that start before it."""
    starts: str
    """The budget that it waits for; empty if it starts as soon as there is room."""
    seconds: tuple[float | None, float | None]
    """Shortest and longest expected run time; null if unknown."""
    cost: tuple[float | None, float | None]
    currency: str


class Submitted(Job):
    """A job that was queued."""

    plan: Plan


class Change(Result):
    """A change of a job's state."""

    at: float
    state: JobState
    reason: str


class Status(Job):
    """A job, its last changes and its last lines."""

    history: list[Change]
    log: list[str]
    replicas: dict[str, dict[str, int]] = {}
    """By role: processes or pods that are ready, and wanted."""


class Logs(Result):
    """The end of a log."""

    id: str
    state: JobState
    lines: list[str]
    left_out: int
    """Lines of those asked for that did not fit."""


class Listed(Result):
    """The newest jobs."""

    jobs: list[Job]
    older: int
    """Jobs that are not shown."""


class Speedup(Result):
    """A forecast, and what it rests on."""

    rows: list[ForecastRow]
    assumption: str
    basis: Basis
    """The runs that were used, and why others were not."""
    backtest: Backtest | None
    """Prediction of the law for the most workers, fitted without them."""
    currency: str | None


def limit_lines(lines: Iterable[str], length: int = LOG_LENGTH) -> tuple[list[str], int]:
    """Return the last lines that fit into an answer, without control characters, and the number of lines before."""
    every = [_printable(line) for line in lines]
    last_lines: list[str] = []
    for line in reversed(every[-LINES:]):
        length -= len(line) + 1
        if length < 0:
            break
        last_lines.append(line)
    return last_lines[::-1], len(every) - len(last_lines)


def _printable(line: str) -> str:
    text = "".join(sign for sign in ANSI.sub("", line) if sign.isprintable() or sign == "\t")
    return shorten(text, LINE_LENGTH)


def shorten(text: str, length: int) -> str:
    """Return a text cut to so many characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."
