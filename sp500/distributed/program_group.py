"""A program on N workers of Ray Train, without its torch backend: each rank is a process as torchrun starts it.

Rank 0 chooses a free port and sends it to the others. A rank leaves how it ended in its folder, so that the first one
that failed is known, whatever the others say afterwards. The processes of a rank end with its worker.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import ray
import ray.train
from ray.train import BackendConfig, FailureConfig, ScalingConfig
from ray.train import RunConfig as TrainRunConfig
from ray.train.backend import Backend
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from sp500.config.program import ProgramConfig
from sp500.distributed import capacity, preflight, session
from sp500.errors import SP500Error
from sp500.machine.ports import find_free_port
from sp500.programs.program import End, Program, Request
from sp500.programs.ranks import Rank, build_environment, rank_folder, read_end, write_event
from sp500.runs.store import Run

STARTS = 3
"""Ports that are tried: another process may take one before rank 0 listens on it."""
TAKEN = ("EADDRINUSE", "ddress already in use")


class _SharedGpus(Backend):  # type: ignore[misc] # Ray has no types
    """No process group, and each process sees the GPUs of all ranks of its node, as under torchrun."""

    share_cuda_visible_devices = True


class _ProgramBackend(BackendConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> type[Backend]:
        return _SharedGpus


@dataclass(frozen=True)
class Assignment:
    """What every rank gets: the program, the folder of the run, and its name for torchrun's variable."""

    request: Request
    folder: Path
    run_id: str


def run_group(config: ProgramConfig, run: Run, request: Request) -> tuple[list[End], dict[str, float]]:
    """Run a program with `config.num_workers` ranks. Returns the ends by rank, and the cluster's size.

    Raises SP500Error with the rank that failed first, its exit code and its last lines.
    """
    with session.connect():
        gpu = preflight.use_gpu(config.device, config.num_workers)
        share = preflight.worker_share(config.num_workers, gpu=gpu)
        preflight.check_shared_storage(run.path)
        run.write_cluster(capacity.resources())
        scaling = ScalingConfig(
            num_workers=config.num_workers, use_gpu=gpu, resources_per_worker=share, placement_strategy="PACK"
        )
        for left in reversed(range(STARTS)):
            failure = _fit(Assignment(request, run.path.resolve(), run.name), scaling)
            ends = [read_end(run.path, rank) for rank in range(config.num_workers)]
            if failure is None and all(end and not end.reason for end in ends):
                return [end for end in ends if end], capacity.resources()
            first = ends[0]
            if not (left and first and any(sign in line for sign in TAKEN for line in first.tail)):
                break
        raise SP500Error(describe_failure(ends, failure))


def describe_failure(ends: list[End | None], failure: str | None) -> str:
    """Return which rank failed first and why, with its last lines; `failure` is Ray's own reason."""
    failed = [(end.at, rank, end) for rank, end in enumerate(ends) if end and end.reason]
    if not failed:
        return f"the program's workers ended: {failure}"
    _, rank, end = min(failed, key=lambda each: each[:2])
    return f"rank {rank} {end.report}"


def _fit(assignment: Assignment, scaling: ScalingConfig) -> str | None:
    """Run the group once. Returns None, or why it failed."""
    storage = assignment.folder / ".ray"
    shutil.rmtree(storage, ignore_errors=True)  # Ray resumes an old run of the same name
    shutil.rmtree(assignment.folder / "ranks", ignore_errors=True)
    trainer = DataParallelTrainer(
        _run_rank,
        train_loop_config={"assignment": assignment},
        backend_config=_ProgramBackend(),
        scaling_config=scaling,
        run_config=TrainRunConfig(
            name="program",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=1, max_preemption_failures=0),
        ),
    )
    try:
        session.run_in_thread(trainer.fit)
    except ray.train.TrainingFailedError as error:
        return " ".join(str(error).split())[:300]
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    return None


def _run_rank(settings: Mapping[str, Assignment]) -> None:
    """Run the program as one rank. Raises SP500Error if it fails, which ends the others."""
    assignment, context = settings["assignment"], ray.train.get_context()
    capacity.withdraw()
    number = context.get_world_rank()
    address = broadcast_from_rank_zero(_choose_address() if number == 0 else None)
    rank = Rank(
        number,
        context.get_world_size(),
        context.get_local_rank(),
        context.get_local_world_size(),
        context.get_node_rank(),
    )
    folder = rank_folder(assignment.folder, number)
    folder.mkdir(parents=True)
    request, (host, port) = assignment.request, address
    variables = build_environment(rank, host, port, assignment.run_id) | dict(request.environment)
    cwd = request.cwd if Path(request.cwd).is_dir() else os.getcwd()  # noqa: PTH109 - where Ray unpacked the job's files
    program = Program(replace(request, cwd=cwd, environment=variables, log=str(folder / "log")))
    for event in program.events():
        write_event(folder, event)
        if isinstance(event, End) and event.reason:
            raise SP500Error(event.reason)


def _choose_address() -> tuple[str, int]:
    """Return this node's address and a port that is free now."""
    return ray.util.get_node_ip_address(), find_free_port("")
