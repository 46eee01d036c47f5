"""Datasets of growing size, three ways under one memory budget: what did streaming buy, and what did the cluster?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator

import sp500.studies.scale
import sp500.studies.scale_estimate
from sp500.config import DataConfig, IOConfig, RunConfig, TrainConfig
from sp500.credentials import Address
from sp500.entry import Command, experiment
from sp500.errors import ConfigError, SP500Error
from sp500.execution import Experiment, execute
from sp500.memory import run_in_subprocess
from sp500.progress import Progress
from sp500.runs import scaling
from sp500.runs.record import RunRecord, Status, ended
from sp500.runs.store import Run, RunStore
from sp500.units import size_bytes


class Budgeted(Experiment):
    """What every arm of the experiment is held to."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an address with a password is not repeated

    experiment: ClassVar[str] = "scale"
    memory_limit: str = "2GiB"
    """Memory of one node, in MiB or GiB: for the process of an arm without Ray, and for each node of Ray."""
    nodes: int | None = Field(None, gt=0)
    """Local nodes of the ray arm, a simulation on this machine. Default: one per worker (none on a cluster)."""
    shards: Address = ""
    """Folder or URI (s3://, gs://) of sets of shards, or of one that prepare.py --out made. Default: with the runs."""
    skip_bad_shards: int = Field(0, ge=0)
    """Go on without up to this many damaged shards."""

    @field_validator("memory_limit")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        size_bytes(size)
        return size

    @property
    def limit_bytes(self) -> int:
        """The budget in bytes."""
        return size_bytes(self.memory_limit)


class Scale(Command, Budgeted):
    """Train on the 20 stocks and noisy copies of them, once per arm and dataset size."""

    arm: ClassVar[str] = "all"
    takes_world_size: ClassVar[bool] = True
    multipliers: tuple[Annotated[int, Field(gt=0)], ...] = Field((1, 10), min_length=1)
    """Sizes: the training series and this many minus one noisy copies."""
    arms: tuple[Literal["in_memory", "streaming", "ray"], ...] = Field(("in_memory", "streaming", "ray"), min_length=1)
    """in_memory: windows as arrays; streaming: shards, one process; ray: shards, --num-workers workers."""
    max_steps: int = Field(0, ge=0)
    """Stop each run after this many steps; 0: no limit."""
    num_workers: tuple[Annotated[int, Field(gt=0)], ...] = Field((2,), min_length=1)  # type: ignore[assignment]
    """Workers of the ray arm; several: one run each, for strong and weak scaling."""
    data: DataConfig = DataConfig(tickers=("stocks",))
    train: TrainConfig = TrainConfig(epochs=3, batch_size=1024, early_stop_patience=0)

    @field_validator("num_workers", mode="before")
    @classmethod
    def _one_is_a_list(cls, workers: object) -> object:
        return (workers,) if isinstance(workers, int) else workers

    def run_config(self) -> RunConfig:
        """Settings of the largest of its runs."""
        plain = self.model_dump(include=set(RunConfig.model_fields))
        return RunConfig(**plain | {"num_workers": max(self.num_workers)})

    @property
    def fingerprint(self) -> str:
        """That of its largest run, the size apart."""
        return self.run_config().fingerprint

    @field_validator("io")
    @classmethod
    def _name_has_room(cls, io: IOConfig) -> IOConfig:
        if io.run_name and len(io.run_name) > 40:
            raise ValueError("run name: at most 40 characters, since every arm and size adds to it")
        return io


class Arm(Budgeted):
    """One arm at one size."""

    kind: str = ""

    @property
    def arm(self) -> str:
        """Its name in the table."""
        return self.kind

    @property
    def label(self) -> str:
        """Its name on the way."""
        return f"{self.data.multiplier}x {self.kind}" + (f" ({self.num_workers} workers)" if self.num_workers else "")


def main(config: Scale, run: Run) -> RunRecord:
    """Every arm at every size, each a run of its own; one that fails is a row that says so."""
    arms = each(config, run.name)
    with Progress("arm", len(arms)) as progress:
        rows = []
        for one in arms:
            record = attempt(one)
            row = scaling.row(record, RunStore(one.io.save_dir).epochs(record.name), one.limit_bytes)
            rows.append(row)
            progress.advance(f"{one.label}: {row['status']} {row['reason']}")
    if not any(row["status"] == "ok" for row in rows):
        raise SP500Error("no arm ended well: " + "; ".join(f"{row['arm']}: {row['reason']}" for row in rows))
    return ended(config, name=run.name, experiment="scale", arm="all", scale=rows)


def each(config: Scale, name: str) -> list[Arm]:
    """All arms at all sizes; the ray arm once per number of workers."""
    workers = {kind: config.num_workers if kind == "ray" else (0,) for kind in config.arms}
    return [
        arm(config, name, kind, size, count)
        for size in config.multipliers
        for kind in config.arms
        for count in workers[kind]
    ]


def arm(config: Scale, name: str, kind: str, size: int, workers: int) -> Arm:
    """Settings of one arm at one size."""
    plain = config.run_config().model_dump()
    plain["data"]["multiplier"] = size
    plain["io"]["run_name"] = f"{name}-{size}x-{kind}" + (f"-{workers}" if workers else "")
    plain["train"]["max_steps"] = config.max_steps or config.train.max_steps
    plain["num_workers"] = workers
    added = config.model_dump(include=set(Budgeted.model_fields) - set(plain))
    return Arm(**plain, **added, kind=kind)


def attempt(one: Arm) -> RunRecord:
    """The record of one arm, also where it failed."""
    try:
        if one.kind == "ray":
            return run_arm(one)
        return run_in_subprocess(run_arm, one)
    except ConfigError:
        raise
    except (SP500Error, MemoryError) as error:
        assert one.io.run_name is not None
        record = RunStore(Path(one.io.save_dir)).record(one.io.run_name)
        status: Status = "out_of_memory" if isinstance(error, MemoryError) else "failed"
        return record or ended(
            one, name=one.io.run_name, experiment="scale", arm=one.kind, status=status, reason=str(error)
        )


def run_arm(one: Arm) -> RunRecord:
    """Train one arm in its own run folder."""
    return execute(one, train)


def train(one: Arm, run: Run) -> RunRecord:
    """The training itself."""
    config = one.run_config()
    if one.kind == "in_memory":
        return sp500.studies.scale.in_memory(config, run, one.limit_bytes)
    if one.kind == "streaming":
        return sp500.studies.scale.streaming(config, run, one.limit_bytes, one.shards, one.skip_bad_shards)
    nodes = one.nodes or (None if "RAY_ADDRESS" in os.environ else one.num_workers)
    budget, root, skip_bad = one.limit_bytes, one.shards, one.skip_bad_shards
    return sp500.studies.scale.on_ray(config, run, nodes=nodes, memory_bytes=budget, root=root, skip_bad=skip_bad)


def plan(config: Scale) -> dict[str, Any]:
    """What a dry run tells: rows and bytes per size, and what each arm is expected to take."""
    runs = [(one.kind, one.run_config()) for one in each(config, "plan")]
    return sp500.studies.scale_estimate.table(runs, config.limit_bytes)


if __name__ == "__main__":
    sys.exit(experiment(Scale, main, sys.argv[1:], plan=plan))
