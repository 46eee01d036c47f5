"""Hyper-parameter search: one config at a time, packs on this machine, packs under Ray Tune, or all three timed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sp500 import formatting
from sp500.console.entry import Command, RunFlags, names_program, run_experiment
from sp500.console.progress import Progress
from sp500.machine.imports import preload
from sp500.progress import Meter, Unit
from sp500.runs import arm_timing, compare
from sp500.runs import progress as run_progress
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.studies import search
from sp500.studies.program_settings import ProgramSearchSettings
from sp500.studies.settings import SearchSettings

if TYPE_CHECKING:
    from sp500.runs.trials import TrialResult


class Tune(SearchSettings, Command):
    """Find the best of many configs by validation loss, and judge that one on the test dates. With --command 'PROGRAM
    --lr {lr}' it searches a program of your own; --command run --help shows the flags of that.
    """


class TuneProgram(ProgramSearchSettings, RunFlags):
    """Find the best values for a program of your own, by the metric that it prints."""


def search_program(config: TuneProgram, run: Run) -> RunRecord:
    """Search the arguments of a program."""
    from sp500.studies import program_search

    with Live(run, sign=-1 if config.maximize else 1) as live:
        return program_search.run_search(config, run, on_start=live.start, on_result=live.advance)


def act(config: SearchSettings, run: Run) -> RunRecord:
    """Search in one mode, or have one child process search in each."""
    if config.mode == "all":
        return arm_timing.run_all(config, run, resume=config.resume, overwrite=config.overwrite)
    if config.mode != "ray":  # which starts while this process imports
        preload("sp500.studies.search_steps", "sp500.report.terminal")
    with Live(run) as live:
        return search.run_search(config, run, on_start=live.start, on_result=live.advance)


class Live:
    """Progress of a search on stderr."""

    def __init__(self, run: Run, *, sign: int = 1) -> None:
        self._run, self._sign = run, sign
        self._progress: Progress | None = None
        self._failed = 0

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            self._progress.__exit__(None, None, None)

    def start(self, total: int, done: int) -> None:
        """Start to show a search of `total` configs, of which `done` are done."""
        meter = Meter("trial", total, since=time.time(), parallel=True)
        earlier = run_progress.units(self._run)
        self._progress = Progress("trial", total, done=done, earlier=earlier, meter=meter).__enter__()

    def advance(self, result: TrialResult, running: int) -> None:
        """Count one more config as ended."""
        assert self._progress is not None
        self._failed += result.status != "ok"
        loss = result.reason if result.valid_loss is None else f"{self._sign * result.valid_loss:.6g}"
        self._progress.advance(
            f"{running} running, {self._failed} failed; {formatting.config(result.overrides)}: {loss}",
            unit=Unit(result.finished, result.seconds, samples=result.samples, loss=result.valid_loss, running=running),
            news=result.status != "ok",
        )


def answer(record: RunRecord) -> Mapping[str, object]:
    """Return the record; `search` also has the keys of `compare.searches`, whichever arms ran."""
    plain = record.model_dump(mode="json")
    if record.arm == "all" or record.search is None:
        return plain
    return {**plain, "search": {**record.search, **compare.searches({record.arm: record})}}


def main(argv: Sequence[str], prog: str = "sp500 tune") -> int:
    """Search configs, or the arguments of a program, and return the exit code."""
    if names_program(argv, TuneProgram):
        from sp500.studies import program_search

        return run_experiment(TuneProgram, search_program, argv, plan=program_search.preview, answer=answer, prog=prog)
    return run_experiment(Tune, act, argv, plan=search.preview, answer=answer, prog=prog)
