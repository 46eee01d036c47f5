"""Benchmark of a GPU: the loop of training, packs of small models, equal numbers, data that does not fit its memory.

    python benchmarks/gpu.py                           # on a GPU, five minutes at most
    python benchmarks/gpu.py --json | tee gpu.json     # one JSON object per section, as each ends
    python benchmarks/gpu.py --device cpu --quick      # the same lines on a CPU, with tiny models

It needs Python 3.11, torch 2.9, NumPy, pandas, pydantic, safetensors and jaxtyping, or later ones, and a checkout: not
the package's other dependencies. What cannot run here, or has no time left, is named in `left_out` with the reason.
Exit code 1: losses on two devices, or with and without DDP, are further apart than 1e-9.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data import batches
from sp500.data.batches import Batch
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import SP500Error
from sp500.runs.results import Metrics
from sp500.seeding import numpy_generator
from sp500.training import throughput
from sp500.training.loop import FitResult, fit
from sp500.training.task import Task
from sp500.training.worker import GroupWorker, Parallel, SoloWorker, Worker
from sp500.tuning import space
from sp500.tuning.packing.batch_model import BatchModel, Dropout
from sp500.tuning.packing.batch_trainer import BatchTrainer
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import TrialData

SECONDS = 300
CPU = torch.device("cpu")
TOLERANCE = 1e-9
BYTES = 256
"""Classes of the language model, which reads bytes."""
Row = dict[str, Any]


class Regression(Task):
    """Sums of squared errors of rows of random numbers, or of random pixels."""

    def prepare(self, config: RunConfig) -> Dataset:
        """Return rows of nine numbers, as prices with volumes have them."""
        return make_dataset(windows=4_000, length=config.data.window, row=(9,), dtype=config.train.dtype)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        """Return the network, after pixels became numbers."""
        network = super().model(config, dataset)
        return network if dataset.train.rows.dtype.kind == "f" else nn.Sequential(Scaled(), network)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of squared errors."""
        return functional.mse_loss(output[:, 0], target, reduction="sum")

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return nothing: only speed is measured."""
        return {"valid": {}, "test": {}, "naive": {}}


class NextByte(Regression):
    """Sums of the cross entropies of random bytes."""

    def prepare(self, config: RunConfig) -> Dataset:
        """Return windows of random bytes, each with the next byte as its target."""
        return make_bytes(windows=1_000, length=config.section(TextConfig).context)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        """Return the network, which accepts bytes."""
        return Task.model(self, config, dataset)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of cross entropies over all bytes."""
        return functional.cross_entropy(output.flatten(0, 1), target.flatten().long(), reduction="sum")


class Scaled(nn.Module):
    """Pixels [batch, 1, height, width, channel] as numbers [batch, pixel] from 0 to 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale the pixels."""
        return x.flatten(1).to(torch.get_default_dtype()) / 255


def make_dataset(windows: int, length: int, row: tuple[int, ...], dtype: str, held_out: int = 512) -> Dataset:
    """Make rows of random numbers, or of random pixels for uint8. A target depends on its window's first row."""
    generator = numpy_generator(0, "benchmark")

    def part(count: int) -> Windows:
        size = (count + length - 1, *row)
        if dtype == "uint8":
            rows = repeat_block(generator.integers(0, 256, (min(size[0], 256), *row), dtype=np.uint8), size)
            targets = rows.reshape(len(rows), -1)[:count, 0].astype(np.float32) / 255
        else:
            rows = repeat_block(generator.standard_normal((min(size[0], 8192), *row)).astype(dtype), size)
            targets = np.tanh(rows.reshape(len(rows), -1)[:count, 0])
        return Windows(rows, np.arange(count), targets, length)

    return Dataset(part(windows), part(held_out), part(held_out), card={"sha256": "", "source": "random"})


def repeat_block(block: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeat the block: to draw tens of gigabytes would take minutes."""
    rows = np.empty(shape, block.dtype)
    for first in range(0, len(rows), len(block)):
        rows[first : first + len(block)] = block[: len(rows) - first]
    return rows


def make_bytes(windows: int, length: int) -> Dataset:
    """Make random bytes."""
    generator = numpy_generator(0, "benchmark")

    def part(count: int) -> Windows:
        text = generator.integers(0, BYTES, count * length + 1, dtype=np.uint8)
        return Windows(text[:-1], np.arange(count) * length, text[1:].reshape(count, length), length)

    card: dict[str, Any] = {"sha256": "", "source": "random"}
    return Dataset(part(windows), part(32), part(32), card=card, outputs=BYTES)  # type: ignore[arg-type]


@dataclass
class Section:
    """Figures of one section, and what was left out. `deadline` is on the clock of time.monotonic."""

    name: str
    deadline: float
    rows: list[Row]
    left_out: dict[str, str]

    def measure(self, name: str, seconds: float, measure: Callable[..., Row], *args: Any, **train: Any) -> Row | None:
        """Keep the row that `measure` gives. It is left out if it fails, or less than `seconds` are left."""
        if self.deadline - time.monotonic() < seconds:
            self.left_out[name] = f"no time left: it takes about {seconds:g} s"
            return None
        started = time.monotonic()
        try:
            row = {"name": name, **measure(*args, **train)}
        except Exception as error:  # noqa: BLE001 - one figure that cannot be had costs no other
            self.left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return None
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.rows.append(row | {"wall_seconds": round(time.monotonic() - started, 2)})
        return row


# 1. The loop of training.


@dataclass(frozen=True)
class Network:
    """A model, its batch, and the steps of an epoch on GPU and CPU."""

    model: Mapping[str, object]
    batch: int
    gpu_steps: int
    cpu_steps: int = 2
    cpu_batch: int = 0
    """Windows of a step on the CPU. Default: `batch`."""
    length: int = 30

    @property
    def task(self) -> Task:
        """Its task."""
        return NextByte() if self.model["kind"] == "gpt" else Regression()


NETWORKS = {
    "mlp": Network({"kind": "mlp", "hidden": 64, "layers": 2}, 256, 400, 100),
    "mlp, batch 8192": Network({"kind": "mlp", "hidden": 64, "layers": 2}, 8192, 100, 5),
    "lstm": Network({"kind": "lstm", "hidden": 64, "layers": 2}, 256, 200, 10),
    "gpt 256": Network({"kind": "gpt", "hidden": 256, "layers": 6, "heads": 4}, 64, 60, length=256, cpu_batch=8),
    "gpt 768": Network({"kind": "gpt", "hidden": 768, "layers": 12, "heads": 12}, 32, 20, length=512, cpu_batch=2),
}
QUICK = {
    "mlp": Network({"kind": "mlp", "hidden": 8, "layers": 1}, 32, 3),
    "lstm": Network({"kind": "lstm", "hidden": 8, "layers": 1}, 32, 3),
    "gpt 256": Network({"kind": "gpt", "hidden": 16, "layers": 1, "heads": 2}, 4, 2, length=16),
    "gpt 768": Network({"kind": "gpt", "hidden": 24, "layers": 2, "heads": 2}, 4, 2, length=16),
}
PRECISIONS: dict[str, dict[str, object]] = {
    "float32": {},
    "bfloat16": {"amp": "bfloat16"},
    "bfloat16, compiled": {"amp": "bfloat16", "compile": True},
}


def settings(model: Mapping[str, object], **train: object) -> RunConfig:
    """Return settings of one training without early stopping, under the name of a task that has such models."""
    shared = {"epochs": 3, "early_stop_patience": 0, "lr": 1e-3}
    return RunConfig(
        task={"gpt": "language", "cnn": "images"}.get(str(model["kind"]), "returns"),
        model=ModelConfig.model_validate({"dropout": 0.0 if model["kind"] == "gpt" else 0.1, **model}),
        train=TrainConfig.model_validate(shared | train),
    )


def measure_training(network: Network, device: torch.device, **train: object) -> Row:
    """Return units per second of the second and third epoch; the first one warms up, and compiles."""
    on_gpu = device.type == "cuda"
    batch = network.batch if on_gpu else network.cpu_batch or network.batch
    count = batch * (network.gpu_steps if on_gpu else network.cpu_steps)
    if network.model["kind"] == "gpt":
        dataset = make_bytes(count, network.length)
    else:
        dataset = make_dataset(count, network.length, (9,), "float32")
    config = settings(network.model, batch_size=batch, device=device.type, threads=0, **train)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    worker = SoloWorker(device)
    result = fit(network.task, dataset, config, worker, splits=())
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else result.peak_worker_bytes
    return describe(network.task, dataset, config, result, device) | {
        "batch": batch,
        "peak_mib": round(peak / 2**20),
        "first_epoch_seconds": round(result.epochs[0].train_seconds, 2),
        "train_loss": result.epochs[-1].train_loss,
    }


def describe(task: Task, dataset: Dataset, config: RunConfig, result: FitResult, device: torch.device) -> Row:
    """Return throughput and MFU of all epochs but the first, as a record has them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    warm = replace(
        result,
        epochs=result.epochs[1:],
        matmul_flops_per_second=throughput.measure_matmul(device, config.train, 0.2),
        device_name=name,
    )
    cost = throughput.count_cost(task, config, dataset)
    shown = throughput.describe(cost, warm, config)
    if shown is None:
        raise SP500Error("the model's operations cannot be counted")
    return {
        f"{shown.unit}_per_second": round(shown.per_second),
        "parameters": shown.parameters,
        "mfu": shown.mfu,
        "data_sheet_mfu": shown.data_sheet_mfu,
        "matmul_tflops": shown.matmul_flops_per_second / 1e12,
        "ms_per_step": 1000 * warm.warm_seconds / (warm.samples / config.batch_size),
    }


def compare_training(section: Section, device: torch.device, quick: bool) -> None:
    """Compare every network and precision on the device, and in float32 by the same loop on the CPU."""
    networks = QUICK if quick else NETWORKS
    for precision in ("float32", "bfloat16"):
        for name, network in networks.items():
            train = PRECISIONS[precision]
            row = section.measure(f"{name}, {precision}", 5, measure_training, network, device, **train)
            if device == CPU or precision != "float32" or row is None:
                continue
            alone = section.measure(f"{name}, {precision}, CPU", 15, measure_training, network, CPU)
            if alone:
                unit = next(key for key in row if key.endswith("_per_second"))
                section.rows.append({"name": f"{name}, GPU over CPU", "ratio": row[unit] / alone[unit]})
    # Compiling is slow: the network that gains most goes first. With --quick, the smallest alone is compiled.
    for name in ["mlp"] if quick else reversed(networks):
        train, title = PRECISIONS["bfloat16, compiled"], f"{name}, bfloat16, compiled"
        section.measure(title, 45, measure_training, networks[name], device, **train)


# 2. Packed searches.


class VmapModel(BatchModel):
    """The same layers, with gradients by torch.func's grad under vmap."""

    @torch.no_grad()
    def gradients(
        self, x: Tensor, loss: Callable[[Tensor], Tensor], dropout: Dropout | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return each member's loss [member], and its gradient by each of `tensors`."""
        assert dropout is None

        def member(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            values = x.flatten(1)
            for place in range(0, len(tensors), 2):
                values = (values.relu() if place else values) @ tensors[place] + tensors[place + 1]
            value = loss(values[None])[0]
            return value, value

        gradients, losses = torch.func.vmap(torch.func.grad(member, has_aux=True))(tuple(self.tensors))
        return losses, list(gradients)


class VmapTrainer(BatchTrainer):
    """A pack of such layers."""

    model = VmapModel


def time_pack(kind: type[BatchTrainer], data: TrialData, trials: list[ConfigTrial]) -> tuple[float, dict[str, float]]:
    """Return seconds, and each member's best validation loss. Two members warm up."""
    for members in (trials[:2], trials):
        started = time.perf_counter()
        results = [result for ended in kind(data, members).run() for result in ended]
        seconds = time.perf_counter() - started
    losses = {result.id: result.valid_loss for result in results if result.valid_loss is not None}
    if failed := [result.reason for result in results if result.status != "ok" or not result.best_epoch]:
        raise SP500Error(f"a member learned nothing: {failed[0]}")
    return seconds, losses


def measure_packs(members: int, device: torch.device, windows: int, batch: int) -> Row:
    """Return milliseconds per member in one pack, by torch.func's vmap, and alone, of which four are timed."""
    base = settings({"kind": "mlp", "hidden": 32, "layers": 2, "dropout": 0.0}, batch_size=batch, device=device.type)
    axes = {"train.lr": [1e-3 * 1.1**number for number in range(10)], "train.seed": range(-(-members // 10))}
    trials = space.grid(base, axes)[:members]
    task = Regression()
    data = TrialData(task, make_dataset(windows, 30, (9,), "float32"), 1.0)
    packed, losses = time_pack(BatchTrainer, data, trials)
    vmapped, by_vmap = time_pack(VmapTrainer, data, trials)
    started = time.perf_counter()
    alone = {
        trial.id: fit(task, data.dataset, trial.config, SoloWorker(device), splits=()).best_loss for trial in trials[:4]
    }
    each = (time.perf_counter() - started) / len(alone)
    return {
        "members": members,
        "packed_ms_per_member": 1000 * packed / members,
        "vmap_ms_per_member": 1000 * vmapped / members,
        "alone_ms_per_member": 1000 * each,
        "alone_over_packed": each * members / packed,
        "vmap_over_packed": vmapped / packed,
        "loss_gap_to_alone": max(abs(losses[name] / (loss or math.nan) - 1) for name, loss in alone.items()),
        "loss_gap_to_vmap": max(abs(losses[name] / loss - 1) for name, loss in by_vmap.items()),
    }


def compare_packs(section: Section, device: torch.device, quick: bool) -> None:
    """Compare 108 and 1,000 MLPs of one shape, with rates and seeds of their own."""
    for members in (6, 10) if quick else (108, 1000):
        windows, batch = (512, 64) if quick else (8192, 256)
        section.measure(f"{members} MLPs, {device.type}", 20, measure_packs, members, device, windows, batch)


# 3. Equal numbers.


class OneRank(GroupWorker):
    """The only rank of a group, under DDP or FSDP all the same."""

    def wrap(self, model: nn.Module, parallel: Parallel, *, find_unused: bool = False) -> nn.Module:
        """Return the model under DDP or FSDP."""
        return self.parallelize(model, parallel, find_unused=find_unused)


def train_exactly(network: Network, worker: Worker, parallel: Parallel = "ddp") -> FitResult:
    """Train two epochs in float64, with dropout."""
    dataset = (
        make_bytes(24, network.length) if network.model["kind"] == "gpt" else make_dataset(600, 30, (9,), "float64")
    )
    device, dtype = worker.device.type, "float64"
    config = settings(network.model, epochs=2, batch_size=8, device=device, dtype=dtype, parallel=parallel)
    return fit(network.task, dataset, config, worker, splits=())


def measure_gap(first: FitResult, second: FitResult) -> float:
    """Return the largest relative difference of training and validation losses over the epochs."""
    pairs = zip(first.epochs, second.epochs, strict=True)
    values = [
        (left, right)
        for one, other in pairs
        for left, right in ((one.train_loss, other.train_loss), (one.valid_loss, other.valid_loss))
    ]
    gap = max(abs(left - right) / abs(left) for left, right in values if left is not None and right is not None)
    return gap if math.isfinite(gap) else math.inf


EXACT = {
    "mlp": Network({"kind": "mlp", "hidden": 32, "layers": 2}, 8, 0),
    "lstm": Network({"kind": "lstm", "hidden": 16, "layers": 1}, 8, 0),
    "gpt": Network({"kind": "gpt", "hidden": 32, "layers": 2, "heads": 2}, 8, 0, length=32),
}


def measure_device(network: Network, device: torch.device) -> Row:
    """Return the gap between the CPU and a GPU."""
    return {"gap": measure_gap(train_exactly(network, SoloWorker(CPU)), train_exactly(network, SoloWorker(device)))}


def measure_rank(network: Network, device: torch.device, parallel: Parallel) -> Row:
    """Return the gap between no group and a group of one rank."""
    alone, rank = train_exactly(network, SoloWorker(device)), OneRank(0, 1, device)
    return {"gap": measure_gap(alone, train_exactly(network, rank, parallel))}


def compare_numbers(section: Section, device: torch.device, quick: bool) -> None:
    """Compare losses on the CPU with those on the device, and one rank of DDP and FSDP with no group."""
    del quick
    for name, network in EXACT.items():
        if device == CPU:
            section.left_out[f"{name}, CPU and GPU"] = "there is no GPU"
        else:
            section.measure(f"{name}, CPU and GPU", 5, measure_device, network, device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=0, world_size=1)
        for way in ("ddp", "fsdp"):
            section.measure(f"gpt, one rank of {way} ({backend})", 5, measure_rank, EXACT["gpt"], device, way)
        dist.destroy_process_group()


# 4. Data larger than its share of the GPU's memory.


def copy_at_need(parts: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches of the host on the device, each copied when it is needed."""
    for batch in parts:
        yield replace(batch, x=batch.x.to(device), y=batch.y.to(device), windows=batch.windows.to(device))


def measure_speed(dataset: Dataset, config: RunConfig, device: torch.device, steps: int) -> float:
    """Return windows per second of so many steps after the first batch."""
    train = config.train.model_copy(update={"max_steps": steps, "epochs": 1})
    result = fit(Regression(), dataset, config.model_copy(update={"train": train}), SoloWorker(device), splits=())
    return result.samples / result.warm_seconds


def measure_large(kind: str, device: torch.device) -> Row:
    """Return windows per second of rows on the host that exceed their share of the GPU's memory, and on the GPU."""
    on_gpu = device.type == "cuda"
    row, dtype, model = {
        "images": ((224, 224, 3) if on_gpu else (8, 8, 3), "uint8", {"kind": "cnn", "hidden": 32, "layers": 3}),
        "arrays": ((4096,) if on_gpu else (64,), "float32", {"kind": "mlp", "hidden": 64}),
    }[kind]
    batch = 256 if on_gpu else 32
    size, total = math.prod(row) * np.dtype(dtype).itemsize, torch.cuda.mem_get_info(device)[1] if on_gpu else 2**22
    config = settings(model, batch_size=batch, device=device.type)
    large = make_dataset(int(total * (batches.DEVICE_SHARE + 0.01) / size), 1, row, dtype, held_out=batch)
    few = replace(large.train, starts=large.train.starts[: 20 * batch], targets=large.train.targets[: 20 * batch])
    small = replace(large, train=replace(few, rows=few.rows[: 20 * batch]))
    measure_speed(small, config, device, 3)  # warms up
    speeds = {"on_device": measure_speed(small, config, device, 20)}
    ahead = batches._copy_ahead
    for name, copy in (("copied_ahead", ahead), ("copied_at_need", copy_at_need)) if on_gpu else ():
        batches._copy_ahead = copy  # type: ignore[assignment]
        try:
            speeds[name] = measure_speed(large, config, device, 60)
        finally:
            batches._copy_ahead = ahead
    return {
        "gib": large.train.rows.nbytes / 2**30,
        "share_of_memory": large.train.rows.nbytes / total,
        **{f"windows_per_second_{name}": round(value) for name, value in speeds.items()},
        **{f"gb_per_second_{name}": value * size / 1e9 for name, value in speeds.items()},
    }


def compare_large(section: Section, device: torch.device, quick: bool) -> None:
    """Compare images and arrays of more than a quarter of the GPU's memory, with batches copied ahead and at need."""
    del quick
    if device == CPU:
        section.left_out["copies"] = "rows stay where they are without a GPU"
    for kind in ("images", "arrays"):
        section.measure(f"{kind}, {device.type}", 30, measure_large, kind, device)


SECTIONS: dict[str, tuple[Callable[[Section, torch.device, bool], None], float]] = {
    "training": (compare_training, 0.55),
    "packs": (compare_packs, 0.7),
    "numbers": (compare_numbers, 0.8),
    "large data": (compare_large, 1.0),
}
"""By name: what fills it, and the share of all seconds at which it starts nothing more."""


def describe_machine(device: torch.device) -> Row:
    """Return versions and devices."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "section": "machine",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "gpu": gpu.name if gpu else None,
        "gpu_gib": round(gpu.total_memory / 2**30, 1) if gpu else None,
        "cpu_threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def show(stdout: TextIO, report: Row) -> None:
    """Print a section for a reader."""
    rows, left_out = report.pop("rows", []), report.pop("left_out", {})
    print("", describe_row(report), sep="\n", file=stdout)
    for row in rows:
        print(f"  {row.pop('name')}: {describe_row(row)}", file=stdout)
    for name, reason in left_out.items():
        print(f"  left out: {name}: {reason}", file=stdout)


def describe_row(row: Row) -> str:
    """Return names and values in a line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def main() -> int:
    """Run the sections in order of value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps")
    parser.add_argument("--seconds", type=float, help=f"of the whole run (default: {SECONDS}; no limit with --quick)")
    parser.add_argument("--json", action="store_true", help="one JSON object per section")
    flags = parser.parse_args()
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu runs the same lines without one")
    device, began, widest = torch.device(flags.device), time.monotonic(), 0.0
    seconds = flags.seconds or (math.inf if flags.quick else SECONDS)
    stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # gloo writes to stdout that it is connected
    print_report = (lambda report: print(json.dumps(report), file=stdout)) if flags.json else partial(show, stdout)
    print_report(describe_machine(device))
    for name, (compare, share) in SECTIONS.items():
        section, started = Section(name, began + share * seconds, [], {}), time.monotonic()
        compare(section, device, flags.quick)
        widest = max([widest, *(row["gap"] for row in section.rows if "gap" in row)])
        took = round(time.monotonic() - started, 1)
        print_report({"section": name, "seconds": took, "rows": section.rows, "left_out": section.left_out})
    return int(widest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
