"""Three steps of a tiny model by 64 processes of gloo on this machine, next to the same by one: loss and weights.

    python benchmarks/many_ranks.py              # ddp and fsdp
    python benchmarks/many_ranks.py --ranks 128

The processes are forked from one that has imported torch, and share its memory. Exit code 1: further apart than 1e-9.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # before the fork, so that its pages are shared
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.windows import Dataset, Windows
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.worker import GroupWorker, SoloWorker, Worker

TOLERANCE = 1e-9
STEPS = 3
"""AdamW's first step is the gradient's sign times the learning rate, and would hide a wrong gradient."""
CPU = torch.device("cpu")


def train_once(worker: Worker, folder: Path, parallel: str, ranks: int) -> tuple[float, dict[str, Tensor]]:
    """Return the mean loss of the steps, and the weights after them as rank 0 wrote them."""
    config = RunConfig.model_validate(
        {
            "task": "language",
            "text": {"max_bytes": 8_000, "context": 8},
            "model": {"kind": "gpt", "hidden": 16, "layers": 2, "heads": 2, "dropout": 0.1},
            # Half as many windows again as ranks: some get two, some one, some none.
            "train": {"batch_size": ranks * 3 // 2, "max_steps": STEPS, "dtype": "float64", "parallel": parallel},
        }
    )
    task = catalog.task(config)
    prepared = task.prepare(config)
    dataset = replace(prepared, valid=None, test=first(prepared, 4))
    checkpoints = Checkpoints(folder, "ranks")
    result = fit(task, dataset, config, worker, checkpoints)
    return result.epochs[0].train_loss, checkpoints.best() if worker.rank == 0 else {}


def first(dataset: Dataset, count: int) -> Windows:
    """Return the first windows of the test part."""
    return replace(dataset.test, starts=dataset.test.starts[:count], targets=dataset.test.targets[:count])


def run_rank(rank: int, ranks: int, folder: Path, parallel: str) -> None:
    """Run one process of the group; rank 0 leaves its loss next to its checkpoint."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    loss, weights = train_once(GroupWorker(rank, ranks, CPU), folder / "checkpoints", parallel, ranks)
    if rank == 0:
        torch.save((loss, weights), folder / "result.pt")
    private = psutil.Process().memory_full_info().uss
    total = torch.tensor(float(private))
    dist.all_reduce(total)
    if rank == 0:
        (folder / "bytes").write_text(str(float(total)))
    dist.destroy_process_group()


def measure(ranks: int, parallel: str, folder: Path, alone: tuple[float, dict[str, Tensor]]) -> dict[str, float]:
    """Return how far the group is from one process, its seconds, and the memory that only its processes hold."""
    folder.mkdir()
    context, started = multiprocessing.get_context("fork"), time.perf_counter()
    group = [context.Process(target=run_rank, args=(rank, ranks, folder, parallel)) for rank in range(ranks)]
    for process in group:
        process.start()
    for process in group:
        process.join()
    if any(process.exitcode for process in group):
        raise SystemExit(f"{parallel}: a process ended with {[process.exitcode for process in group]}")
    loss, weights = torch.load(folder / "result.pt")
    return {
        "loss_gap": abs(loss - alone[0]),
        "largest_weight_gap": max(float((weights[name] - value).abs().max()) for name, value in alone[1].items()),
        "seconds": round(time.perf_counter() - started, 1),
        "mib_of_their_own": round(float((folder / "bytes").read_text()) / 2**20),
    }


def main() -> int:
    """Print the figures of both ways; 1 if one is further away than TOLERANCE."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sp500-ranks-") as name:
        folder = Path(name)
        alone = train_once(SoloWorker(CPU), folder / "alone", "ddp", flags.ranks)
        figures = {way: measure(flags.ranks, way, folder / way, alone) for way in ("ddp", "fsdp")}
    print(json.dumps({"ranks": flags.ranks, "loss": alone[0], **figures}, indent=1))
    gaps = [row[gap] for row in figures.values() for gap in ("loss_gap", "largest_weight_gap")]
    return int(not max(gaps) <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
