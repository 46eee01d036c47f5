"""Scaling up a dataset: every arm at every size, under one memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.errors import ConfigError, SP500Error
from sp500.execution import execute
from sp500.machine import ray_address
from sp500.machine.imports import preload
from sp500.machine.memory import run_in_subprocess
from sp500.runs import scaling
from sp500.runs.arm_timing import CpuSeconds
from sp500.runs.record import RunRecord, Status, make_record
from sp500.runs.results import ScaleRow
from sp500.runs.store import Run, RunStore
from sp500.studies.settings import ArmSettings, Budgeted, ScaleSettings

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay


def run_scale(
    config: ScaleSettings, run: Run, on_arm: Callable[[ArmSettings, ScaleRow], None] = lambda arm, row: None
) -> RunRecord:
    """Run every arm at every size, each as a run of its own; a failed one is a row with its reason.

    `on_arm` gets each arm's settings and row as it ends. Raises SP500Error when all fail.
    """
    rows: list[ScaleRow] = []
    for arm in each(config, run.name):
        with CpuSeconds(os.getpid()) as cpu:
            record = attempt(arm)
        store = RunStore(arm.io.save_dir)
        folder = store.root / record.name
        row = scaling.row(record, store.epochs(record.name), arm.limit_bytes, folder)
        rows.append({**row, "others_share": None if row["place"] == "cluster" else cpu.others_share})
        on_arm(arm, rows[-1])
    if not any(row["status"] == "ok" for row in rows):
        raise SP500Error("no arm ended well: " + "; ".join(f"{row['arm']}: {row['reason']}" for row in rows))
    return make_record(config, name=run.name, experiment="scale", arm="all", scale=rows)


def each(config: ScaleSettings, name: str) -> list[ArmSettings]:
    """Return all arms at all sizes; the ray arm once per number of workers."""
    workers = {kind: config.num_workers if kind == "ray" else (0,) for kind in config.arms}
    return [
        _arm(config, name, kind, size, count)
        for size in config.multipliers
        for kind in config.arms
        for count in workers[kind]
    ]


def _arm(config: ScaleSettings, name: str, kind: str, size: int, workers: int) -> ArmSettings:
    """Return the settings of one arm at one size."""
    plain = config.run_config().model_dump()
    plain["data"]["multiplier"] = size
    plain["io"]["run_name"] = f"{name}-{size}x-{kind}" + (f"-{workers}" if workers else "")
    plain["train"]["max_steps"] = config.max_steps or config.train.max_steps
    plain["num_workers"] = workers
    added = config.model_dump(include=set(Budgeted.model_fields) - set(plain))
    # This run's Python may run. An arm is another process, which may not know of it.
    return ArmSettings(**plain, **added | {"trust_source": True}, kind=kind)


def attempt(arm: ArmSettings) -> RunRecord:
    """Return the record of one arm, also if it failed."""
    try:
        if arm.kind == "ray":
            return run_arm(arm)
        return run_in_subprocess(run_arm, arm)
    except ConfigError:
        raise
    except (SP500Error, MemoryError) as error:
        assert arm.io.run_name is not None
        record = RunStore(Path(arm.io.save_dir)).record(arm.io.run_name)
        status: Status = "out_of_memory" if isinstance(error, MemoryError) else "failed"
        return record or make_record(
            arm, name=arm.io.run_name, experiment="scale", arm=arm.kind, status=status, reason=str(error)
        )


def run_arm(arm: ArmSettings) -> RunRecord:
    """Train one arm in its own run folder."""
    return execute(arm, train)


def train(arm: ArmSettings, run: Run) -> RunRecord:
    """Train by the arm's function."""
    config = arm.run_config()
    nodes = arm.nodes or (None if ray_address.read() else arm.num_workers)
    with _start_ray(nodes, arm.limit_bytes) if arm.kind == "ray" else nullcontext() as ray:
        preload("sp500.studies.scale_arms")  # loads torch, while Ray starts
        from sp500.studies import scale_arms

        if arm.kind == "in_memory":
            return scale_arms.in_memory(config, run, arm.limit_bytes)
        if arm.kind == "streaming":
            return scale_arms.streaming(config, run, arm.limit_bytes, arm.shards, arm.skip_bad_shards)
        assert ray is not None
        return scale_arms.on_ray(config, run, ray, nodes=nodes or 0, root=arm.shards, skip_bad=arm.skip_bad_shards)


def _start_ray(nodes: int | None, memory_bytes: int) -> AbstractContextManager[BackgroundRay]:
    """Begin to start the nodes whose memory is measured; none on a cluster that is not ours."""
    from sp500.distributed import session, simulated_nodes

    return session.start_in_background(simulated_nodes.simulate(nodes, memory_bytes) if nodes else None)


def preview(config: ScaleSettings) -> dict[str, object]:
    """Return what a dry run prints: rows and bytes per size, and the expected memory of each arm.

    Nothing for a task or a model of the user's: a dry run imports neither.
    """
    if config.own_task or config.model.own:
        return {}
    from sp500.studies import scale_estimate

    runs = [(arm.kind, arm.run_config()) for arm in each(config, "plan")]
    return {**scale_estimate.table(runs, config.limit_bytes)}
