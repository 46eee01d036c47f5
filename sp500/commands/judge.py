"""`sp500 judge FILE`: forecasts made elsewhere, next to the runs of this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from pydantic import Field

from sp500.console.entry import Command, run_experiment
from sp500.errors import ConfigError
from sp500.runs.record import RunRecord
from sp500.runs.store import Run


class Judge(Command):
    """Judge forecasts of a Parquet or CSV file with the columns date, ticker and forecast, on the test of data.*.

    A forecast of a date is made at its close, in units of the task (log returns over --horizon sessions; probabilities
    of a rise for direction).
    """

    experiment: ClassVar[str] = "judge"
    file: Annotated[Path, tyro.conf.Positional] = Path("forecasts.parquet")
    """The forecasts."""
    tries: int = Field(1, ge=1)
    """Configs that were tried elsewhere, of which these forecasts are the best: verdicts allow for as much luck."""

    @property
    def arm(self) -> str:
        """The arm of a comparison: forecasts that were made elsewhere."""
        return "elsewhere"

    @property
    def subject(self) -> str:
        """The file."""
        return self.file.stem

    @property
    def fingerprint(self) -> str:
        """Hash of settings and file."""
        from sp500.studies import judge

        return judge.mix(super().fingerprint, self.file)

    def check_start(self) -> None:
        """Raise ConfigError for a task without dates, or workers."""
        if self.num_workers:
            raise ConfigError("num_workers: nothing is trained; leave it out")
        if not (self.task_kind.from_prices or self.own_task):
            raise ConfigError(f"task {self.task}: forecasts are matched by date and ticker; use a task of prices")


def _judge(config: Judge, run: Run) -> RunRecord:
    from sp500.studies import judge

    return judge.judge(config, run, file=config.file, tries=config.tries, arm=config.arm)


def main(argv: Sequence[str]) -> int:
    """Run `sp500 judge` and return its exit code."""
    words = [
        f"--data.horizon{word.removeprefix('--horizon')}" if word.partition("=")[0] == "--horizon" else word
        for word in argv
    ]
    return run_experiment(Judge, _judge, words)
