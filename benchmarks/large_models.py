"""Costs and savings of micro-batches, gradient checkpointing and bfloat16, each in a process of its own, in one run.

    python benchmarks/large_models.py                  # a GPT of 12 layers, 6 steps, under a minute
    python benchmarks/large_models.py --width 256      # where bfloat16 begins to pay, on a CPU that has it

Memory is the largest proportional set (PSS) above that before the first step; ratios are to the first line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.batches import Batches
from sp500.data.text.settings import TextConfig
from sp500.machine.memory import PeakMemory, pss_bytes, run_in_subprocess
from sp500.tasks import catalog
from sp500.training.step import Stepper
from sp500.training.worker import SoloWorker, device

ARMS: dict[str, dict[str, object]] = {
    "plain": {},
    "micro-batches of 2": {"micro_batch": 2},
    "recompute": {"recompute": True},
    "both": {"micro_batch": 2, "recompute": True},
    "bfloat16": {"amp": "bfloat16"},
}
LOW_PRECISION = {"avx512_bf16", "amx_bf16"}
Figures = dict[str, float]


def measure(layers: int, width: int, steps: int, train: dict[str, object]) -> Figures:
    """Return tokens per second after the first step, MiB above the start, and the last loss per token."""
    torch.set_num_threads(1)
    config = RunConfig(
        task="language",
        text=TextConfig(max_bytes=100_000, context=256),
        model=ModelConfig(kind="gpt", hidden=width, layers=layers, heads=4, dropout=0.0),
        train=TrainConfig.model_validate({"batch_size": 8, "lr": 1e-3, **train}),
    )
    task, worker = catalog.task(config), SoloWorker(device("auto"))
    dataset = task.prepare(config)
    torch.manual_seed(0)
    stepper = Stepper(task, task.model(config, dataset).to(worker.device), config, worker, steps)
    stepper.start(1)
    batches = Batches(dataset.train, worker.device).epoch(1, 8, shuffle=True, seed=0)
    before, warm, loss = pss_bytes(), 0.0, 0.0
    with PeakMemory(0.01) as peak:
        for step in range(steps):
            warm = warm or (time.perf_counter() if step else 0.0)
            batch = next(batches)
            loss = float(stepper.take(batch, step)) / batch.targets
        seconds = time.perf_counter() - warm
    tokens = (steps - 1) * 8 * 256
    return {"tokens_per_second": tokens / seconds, "mib": (peak.bytes - before) / 2**20, "loss": loss}


def main() -> None:
    """Print a line per arm, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_args()
    runs: dict[str, Figures] = {}
    for name, train in ARMS.items():
        runs[name] = run_in_subprocess(measure, flags.layers, flags.width, flags.steps, train)
        first, (speed, memory) = (
            runs[name],
            (runs[name][key] / runs["plain"][key] for key in ("tokens_per_second", "mib")),
        )
        line = f"{first['tokens_per_second']:8.0f} tokens/s (x {speed:.2f}) {first['mib']:6.0f} MiB (x {memory:.2f})"
        if not flags.json:
            print(f"{name:<20}{line}  loss {first['loss']:.4f}", flush=True)
    has = sorted(LOW_PRECISION & set(Path("/proc/cpuinfo").read_text().split()))
    print(json.dumps(runs | {"bfloat16_of_this_cpu": has}) if flags.json else f"bfloat16 of this CPU: {has or 'none'}")


if __name__ == "__main__":
    main()
