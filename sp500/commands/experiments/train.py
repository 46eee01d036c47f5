"""Train one model, in this process (--num-workers 0) or on Ray with N workers, and judge it next to naive forecasts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from sp500.console.entry import Command, RunFlags, names_program, run_experiment
from sp500.console.progress import Progress
from sp500.machine.imports import preload
from sp500.runs.progress import epoch_meter, unit, units
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.store import Run
from sp500.studies.program_settings import ProgramTrainSettings
from sp500.studies.settings import TrainSettings

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay
    from sp500.programs.output import Measurement


class Train(TrainSettings, Command):
    """Train one model and judge it on dates that it has not seen. With --command 'python ddp.py' it runs a program of
    your own; --command run --help shows the flags of that.
    """

    takes_world_size: ClassVar[bool] = True


def act(config: TrainSettings, run: Run) -> RunRecord:
    """Train `config` and describe the run."""
    meter = epoch_meter(config.train, config.seeds, datetime.now(UTC))
    progress = Progress("epoch", config.train.epochs, earlier=units(run), meter=meter)
    with progress, _start_ray(config) as ray:
        preload("sp500.studies.train", "sp500.report.terminal")  # while Ray starts
        from sp500.studies import train

        def show(epoch: EpochMetrics) -> None:
            valid = "" if epoch.valid_loss is None else f"  valid {epoch.valid_loss:.5f}"
            measures = "".join(f", {name} {value:.5g}" for name, value in epoch.measures.items())
            progress.advance(f"train {epoch.train_loss:.5f}{valid}{measures}", done=epoch.epoch, unit=unit(epoch))

        return train.train(config, run, on_epoch=show, seeds=config.seeds, ray=ray)


def _start_ray(config: TrainSettings) -> AbstractContextManager[BackgroundRay | None]:
    if not config.num_workers:
        return nullcontext()
    from sp500.distributed import session

    return session.start_in_background()


class TrainProgram(ProgramTrainSettings, RunFlags):
    """Run one program of your own, in one process or on N workers of Ray with the environment that torchrun sets."""

    takes_world_size: ClassVar[bool] = True


def run_program(config: TrainProgram, run: Run) -> RunRecord:
    """Run a program, and show what it measures."""
    from sp500.studies import program_train

    def show(line: Measurement) -> None:
        samples = "" if line.samples is None else f", {line.samples} samples"
        print(f"epoch {line.epoch}: {config.metric} {line.value:.6g}{samples}", file=sys.stderr, flush=True)

    return program_train.run_program(config, run, on_measurement=show)


def main(argv: Sequence[str], prog: str = "sp500 train") -> int:
    """Train a model, or run a program, and return the exit code."""
    if names_program(argv, TrainProgram):
        return run_experiment(TrainProgram, run_program, argv, prog=prog)
    return run_experiment(Train, act, argv, prog=prog)
