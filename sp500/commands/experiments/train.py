"""Train one model, in this process (--num-workers 0) or on Ray with N workers, and judge it next to naive forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from sp500.console.entry import Command, run_experiment
from sp500.console.imports import preload
from sp500.console.progress import Progress
from sp500.runs.progress import epoch_meter, unit, units
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.store import Run
from sp500.studies.settings import TrainSettings


class Train(TrainSettings, Command):
    """Train one model and judge it on dates that it has not seen."""

    takes_world_size: ClassVar[bool] = True


def act(config: Train, run: Run) -> RunRecord:
    """Train `config` and describe the run."""
    preload("sp500.studies.train", "sp500.report.terminal")
    from sp500.studies import train

    meter = epoch_meter(config.train, config.seeds, datetime.now(UTC))
    with Progress("epoch", config.train.epochs, earlier=units(run), meter=meter) as progress:

        def show(epoch: EpochMetrics) -> None:
            valid = "" if epoch.valid_loss is None else f"  valid {epoch.valid_loss:.5f}"
            measures = "".join(f", {name} {value:.5g}" for name, value in epoch.measures.items())
            progress.advance(f"train {epoch.train_loss:.5f}{valid}{measures}", done=epoch.epoch, unit=unit(epoch))

        return train.train(config, run, on_epoch=show, seeds=config.seeds)


def main(argv: Sequence[str], prog: str = "sp500 train") -> int:
    """Run it and return the exit code."""
    return run_experiment(Train, act, argv, prog=prog)
