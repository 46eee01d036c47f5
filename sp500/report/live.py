"""The report while runs go on: what each has done, its curve so far, and the time that is left."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure as Canvas

from sp500 import formatting
from sp500.errors import ConfigError
from sp500.report import page
from sp500.report.plot_style import BLUE, GREY, SMALL, Figure, Look, apply_style, render, without_pixels
from sp500.report.section import Runs, read_runs
from sp500.runs import progress
from sp500.runs.cost import RateTable
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.runs.trials import read_trials

MOST = 12
"""Runs that are shown, those that run first."""


@dataclass(frozen=True)
class LiveRun:
    """A run without a record."""

    name: str
    state: str
    """running | killed."""
    text: str
    chart: Figure | None


class LivePage:
    """The page of a folder; what ended is drawn again only when another run has ended."""

    def __init__(
        self, store: RunStore, rates: RateTable | None, *, names: Collection[str] = (), project: str = ""
    ) -> None:
        self._store, self._rates, self._names, self._project = store, rates, names, project
        self._ended: object = None
        self._report: page.Report | None = None

    def __call__(self) -> str:
        """Return the page as the folder is now."""
        runs = read_runs(self._store, self._rates, names=self._names, project=self._project)
        ended = [(record.name, record.finished) for record in runs.records]
        with without_pixels():
            if self._report is None or ended != self._ended:
                self._report, self._ended = page.compose(runs, self._store.root), ended
            return page.draw(runs, self._report, list_live(self._store, runs))


def list_live(store: RunStore, runs: Runs) -> list[LiveRun]:
    """Return the runs that go on, newest first, then those that were killed."""
    live = [_describe(store, record) for record in reversed(runs.unended)]
    return sorted(live, key=lambda run: run.state != "running")[:MOST]


def _describe(store: RunStore, record: RunRecord) -> LiveRun:
    run = store.run(record.name)
    state = "running" if run.is_open() else "killed"
    try:
        known = progress.read(run)
        losses = [epoch.valid_loss for epoch in run.epochs()] or [trial.valid_loss for trial in read_trials(run.path)]
    except ConfigError as error:
        return LiveRun(record.name, state, str(error), None)
    if known is None:
        return LiveRun(record.name, state, f"{record.experiment}: no epoch or trial yet.", None)
    _, done = known
    parts = [done.counted]
    parts += [] if done.best_loss is None else [f"best validation loss {done.best_loss:.6g}"]
    now = time.time()
    left = done.eta_seconds(now)
    if state == "running":
        parts += [f"the last {formatting.seconds(now - done.updated)} ago"] if done.done else []
        parts += [] if left is None else [f"{formatting.seconds(left)} left"]
    text = f"{', '.join(parts)}."
    return LiveRun(record.name, state, text, _draw(record.name, done.kind, losses))


@apply_style()
def _draw(name: str, kind: str, losses: Sequence[float | None]) -> Figure | None:
    """Draw the validation loss of every epoch as a line, or of every trial as a mark."""
    points = [(place, loss) for place, loss in enumerate(losses, 1) if loss is not None and math.isfinite(loss)]
    if not points:
        return None
    chart = Canvas(figsize=(SMALL, 0.95))
    chart.subplots_adjust(0.16, 0.24, 0.98, 0.94)
    axes = chart.subplots()
    look: Look = {"color": BLUE} if kind == "epoch" else {"color": GREY, "linestyle": "none"}
    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **look)
    axes.locator_params(nbins=4, integer=True, axis="x")
    axes.locator_params(nbins=3, axis="y")
    axes.grid(axis="y")
    return render(chart, f"live-{name}", f"Validation loss of each {kind} of {name} so far.")
