"""Comparison of the streamed arms with training from memory: ratios within one run, the first epoch apart.

The ceiling is the same loop over the same windows held in memory.

    python benchmarks/streaming.py --json
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import ShardSet
from sp500.data.windows import Dataset
from sp500.distributed import train
from sp500.distributed.simulated_nodes import simulate
from sp500.machine.memory import run_in_subprocess
from sp500.runs.store import Run
from sp500.studies import scale_arms
from sp500.tasks import catalog
from sp500.training.loop import FitResult, fit
from sp500.training.worker import GroupWorker, SoloWorker

SMALL, LARGE = 10, 200
CPU = torch.device("cpu")
MLP = ModelConfig(kind="mlp", hidden=128, layers=2)
LSTM = ModelConfig(kind="lstm", hidden=64, layers=1)


@dataclass(frozen=True)
class Case:
    """Settings of one measurement, and the folder of the shards."""

    config: RunConfig
    shards: ShardSet


def measure_ratios(folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Return all ratios, each measured side by side in this run; `say` gets each as it is measured."""
    ratios: dict[str, float] = {}

    def keep(**numbers: float) -> None:
        ratios.update(numbers)
        say(", ".join(f"{name} {value:.3f}" for name, value in numbers.items()))

    mlp = _case(folder, MLP, SMALL, epochs=4)
    ceiling = _warm(run_in_subprocess(_from_memory, mlp))
    keep(streaming_over_ceiling_mlp=_warm(run_in_subprocess(_from_shards, mlp)) / ceiling)
    keep(ray1_over_ceiling_mlp=_warm(_on_ray(mlp, 1, folder)) / ceiling)
    keep(ray2_over_torch2_mlp=_warm(_on_ray(mlp, 2, folder)) / _warm(_two_processes(mlp)))
    lstm = _case(folder, LSTM, 1, epochs=3)
    keep(ray1_over_ceiling_lstm=_warm(_on_ray(lstm, 1, folder)) / _warm(run_in_subprocess(_from_memory, lstm)))
    keep(ray2_over_torch2_lstm=_warm(_on_ray(lstm, 2, folder)) / _warm(_two_processes(lstm)))
    return ratios | _large(folder, keep)


def _large(folder: Path, keep: Callable[..., None]) -> dict[str, float]:
    """Return ratios of the large set to the small one."""
    shutil.rmtree(folder / "shards-large", ignore_errors=True)
    small = _case(folder, MLP, SMALL, epochs=3, max_steps=1500)
    started = time.perf_counter()
    large = _case(folder, MLP, LARGE, epochs=3, max_steps=1500, name="shards-large")
    written = large.shards.windows / (time.perf_counter() - started)
    results = [run_in_subprocess(_from_shards, case) for case in (small, large)]
    speeds = [result.samples / result.train_seconds for result in results]
    windows = large.shards.windows * large.shards.layout.window * large.shards.layout.row_bytes
    sizes = {
        "worker_memory_large_over_small": results[1].peak_worker_bytes / results[0].peak_worker_bytes,
        "seconds_per_sample_large_over_small": speeds[0] / speeds[1],
        "disk_over_materialised": large.shards.bytes / windows,
        "writing_over_training": written / speeds[1],
    }
    keep(**sizes)
    return sizes


def _case(folder: Path, model: ModelConfig, multiplier: int, *, name: str = "shards", **train: int) -> Case:
    config = RunConfig(
        data=DataConfig(tickers=("stocks",), multiplier=multiplier),
        model=model,
        train=TrainConfig(batch_size=1024, early_stop_patience=0, **train),
    )
    source = scale_arms.prepare(config).source()
    return Case(config, writer.write(source, str(folder.resolve() / name / source.fingerprint)))


def _warm(result: FitResult) -> float:
    """Return samples per second of training, the first epoch apart."""
    later = result.epochs[1:]
    return sum(epoch.samples for epoch in later) / sum(epoch.train_seconds for epoch in later)


def _dataset(case: Case, multiplier: int | None) -> Dataset:
    return scale_arms.prepare(case.config).dataset("float32", multiplier=multiplier)


def _from_memory(case: Case) -> FitResult:
    return fit(catalog.task(case.config), _dataset(case, None), case.config, SoloWorker(CPU))


def _from_shards(case: Case) -> FitResult:
    ranks = stream.assign_shards(case.shards.shards, 1)
    chunks = stream.local_chunks(case.shards, ranks[0], shuffle=True, seed=0)
    batches = stream.Stream(chunks, case.shards, stream.count_windows(ranks), CPU, torch.float32)
    return fit(catalog.task(case.config), _dataset(case, 1), case.config, SoloWorker(CPU), train=batches)


def _on_ray(case: Case, workers: int, folder: Path) -> FitResult:
    config = case.config.model_copy(update={"num_workers": workers})
    run = _fresh(folder)
    with simulate(workers):
        return train.fit_on_ray(catalog.task(config), _dataset(case, 1), config, run, case.shards, spread=True)


def _fresh(folder: Path) -> Run:
    path = folder / "run"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return Run(path.resolve())


def _two_processes(case: Case) -> FitResult:
    """Train by two processes of plain torch.distributed (gloo), each fed from memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
    processes = torch.multiprocessing.spawn(_rank, (2, port, case, answers), nprocs=2, join=False)  # type: ignore[attr-defined]
    while answers.empty():
        processes.join(timeout=1)  # raises what a process raised
    result: FitResult = answers.get()
    while not processes.join():
        continue
    return result


def _rank(rank: int, world: int, port: int, case: Case, answers: Any) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    result = fit(catalog.task(case.config), _dataset(case, None), case.config, GroupWorker(rank, world, CPU))
    dist.destroy_process_group()
    if rank == 0:
        answers.put(result)


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of runs and shards (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        ratios = measure_ratios(flags.folder or Path(temporary), lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(ratios) if flags.json else "\n".join(f"{name} {value:.3f}" for name, value in ratios.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
