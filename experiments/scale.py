"""Datasets of growing size, in one process and on Ray: how fast, and with how much memory?"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sp500.config import DataConfig, RunConfig, TrainConfig
from sp500.entry import Command, experiment
from sp500.errors import SP500Error
from sp500.execution import Experiment, execute
from sp500.progress import Progress
from sp500.runs import compare
from sp500.runs.memory import in_child
from sp500.runs.record import RunRecord, ended
from sp500.runs.store import Run, RunStore


class Scale(Command):
    """Train on the 20 stocks and noisy copies of them, once per arm and dataset size."""

    experiment: ClassVar[str] = "scale"
    arm: ClassVar[str] = "all"
    multipliers: tuple[Annotated[int, Field(gt=0)], ...] = (1, 10)
    """Sizes: the training series and this many minus one noisy copies."""
    arms: tuple[Literal["in_memory", "ray"], ...] = ("in_memory", "ray")
    """in_memory: one process of its own, without Ray; ray: Ray Train with --num-workers."""
    max_steps: int = Field(0, ge=0)
    """Stop each run after this many steps; 0: no limit."""
    num_workers: int = Field(2, gt=0)
    """Workers of the ray arm."""
    data: DataConfig = DataConfig(tickers=("stocks",))
    train: TrainConfig = TrainConfig(epochs=3, batch_size=1024, early_stop_patience=0)


class Arm(Experiment):
    """One arm at one size."""

    experiment: ClassVar[str] = "scale"
    kind: str = ""

    @property
    def arm(self) -> str:
        """Its name in the table."""
        return self.kind


def main(config: Scale, run: Run) -> RunRecord:
    """Every arm at every size, each a run of its own; one that fails is a row that says so."""
    from sp500.distributed import cluster

    arms = [arm(config, run.name, kind, size) for size in config.multipliers for kind in config.arms]
    with (
        Progress("arm", len(arms)) as progress,
        cluster.connected() if "ray" in config.arms else nullcontext(),
    ):
        rows = []
        for one in arms:
            row = compare.scale_row(attempt(one))
            rows.append(row)
            progress.advance(f"{row['multiplier']}x {row['arm']}: {row['status']} {row['reason']}")
    if not any(row["status"] == "ok" for row in rows):
        raise SP500Error("no arm ended well: " + "; ".join(f"{row['arm']}: {row['reason']}" for row in rows))
    return ended(config, name=run.name, experiment="scale", arm="all", scale=rows)


def arm(config: Scale, name: str, kind: str, size: int) -> Arm:
    """Settings of one arm at one size."""
    plain = config.run_config().model_dump()
    plain["data"]["multiplier"] = size
    plain["io"]["run_name"] = f"{name}-{size}x-{kind}"
    plain["train"]["max_steps"] = config.max_steps or config.train.max_steps
    plain["num_workers"] = config.num_workers if kind == "ray" else 0
    return Arm(**plain, kind=kind, resume=config.resume)


def attempt(one: Arm) -> RunRecord:
    """The record of one arm, also where it failed."""
    try:
        # The one process starts with nothing loaded, so that its memory is its own.
        return in_child(run_arm, one) if one.kind == "in_memory" else run_arm(one)
    except SP500Error as error:
        assert one.io.run_name is not None
        record = RunStore(Path(one.io.save_dir)).record(one.io.run_name)
        reason = str(error)
        return record or ended(
            one, name=one.io.run_name, experiment="scale", arm=one.kind, status="failed", reason=reason
        )


def run_arm(one: Arm) -> RunRecord:
    """Train one arm in its own run folder."""
    started = None if one.kind == "in_memory" else datetime.now(UTC)
    return execute(one, lambda config, run: train(config, run, started))


def train(config: Arm, run: Run, started: datetime | None) -> RunRecord:
    """The training itself; the clock of an arm in its own process starts with the process."""
    from sp500.distributed import launch

    return launch.train(RunConfig.run_config(config), run, experiment="scale", arm=config.kind, started=started)


if __name__ == "__main__":
    sys.exit(experiment(Scale, main, sys.argv[1:]))
