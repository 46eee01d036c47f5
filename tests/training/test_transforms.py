"""Windows that a task changes and mixes: the same for any number of workers and after an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from forks import run_group
from torch import Tensor

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.batches import Batch, Batches
from sp500.errors import ConfigError
from sp500.tasks import synthetic
from sp500.tasks.settings import SyntheticConfig
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.transforms import Transforms
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Mixup(synthetic.Synthetic):
    """Noise on each window, then mixup with soft targets (Zhang et al. 2018, arXiv:1710.09412)."""

    def transform(self, x: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.from_numpy(rng.normal(0, 0.1, tuple(x.shape)))
        return x + noise, F.one_hot(target, 4).to(x.dtype)

    def mix(
        self, x: Tensor, target: Tensor, x2: Tensor, target2: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        share = float(rng.beta(0.4, 0.4))
        return torch.lerp(x2, x, share), torch.lerp(target2, target, share)


@dataclass(frozen=True)
class Whole(synthetic.Synthetic):
    """A change that needs the whole batch."""

    def transform_batch(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x - x.mean(dim=0), targets


class Streamed:
    """Batches of which a rank has only its own windows."""

    def epoch(self, epoch: int, batch_size: int, *, shuffle: bool, seed: int) -> Iterator[Batch]:
        yield from ()

    def steps(self, batch_size: int) -> int:
        return 0


def settings(**train: object) -> RunConfig:
    plain = {"epochs": 2, "batch_size": 50, "lr": 0.05, "dtype": "float64", "checkpoint_steps": 4, **train}
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=300, features=4),
        model=ModelConfig(kind="mlp", hidden=8, dropout=0.2),
        train=TrainConfig.model_validate(plain),
    )


def outputs(task: synthetic.Synthetic, worker: Worker, folder: Path | None = None) -> np.ndarray:
    checkpoints = Checkpoints(folder, "x") if folder else None
    return fit(task, task.prepare(task.config), task.config, worker, checkpoints).outputs["test"]


def test_each_window_changes_by_seed_epoch_and_its_number_alone():
    task = Mixup(settings())
    batches = Batches(task.prepare(task.config).train, CPU)
    [*_, last] = batches.epoch(1, 50, shuffle=True, seed=0)
    again = Batches(task.prepare(task.config).train, CPU, rank=1, world=2)
    [*_, half] = again.epoch(1, 50, shuffle=True, seed=0)
    changes = Transforms(task, batches, 0)
    whole, second = changes.apply(last, 1), Transforms(task, again, 0).apply(half, 1)
    assert torch.equal(whole.x[-len(second.x) :], second.x)
    assert torch.equal(whole.y[-len(second.y) :], second.y)
    assert whole.y.sum(dim=1) == pytest.approx(1.0)
    assert 0.2 < float(((whole.y > 0).sum(dim=1) == 2).double().mean()) < 0.95  # others have a partner of their class
    assert not torch.equal(changes.apply(last, 2).x, whole.x)


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=3)
    found = outputs(Mixup(settings(micro_batch=7)), GroupWorker(rank, 3, CPU))
    if rank == 0:
        np.save(folder / "ranks.npy", found)
    dist.destroy_process_group()


def test_three_ranks_with_micro_batches_and_a_resumed_run_end_as_one_process(tmp_path):
    straight = outputs(Mixup(settings()), SoloWorker(CPU), tmp_path / "solo")
    shutil.rmtree(tmp_path / "solo" / "epoch-00002")
    assert np.array_equal(outputs(Mixup(settings()), SoloWorker(CPU), tmp_path / "solo"), straight)
    assert not np.allclose(outputs(synthetic.Synthetic(settings()), SoloWorker(CPU)), straight, atol=1e-3)
    run_group(3, train_as_rank, tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "ranks.npy"), straight, rtol=0, atol=1e-9)


def test_whole_batch_is_changed_at_once():
    task = Whole(settings())
    batches = Batches(task.prepare(task.config).train, CPU)
    [first, *_] = batches.in_order(50)
    assert Transforms(task, batches, 0).apply(first, 1).x.mean(dim=0).abs().max() < 1e-12


def test_mixing_of_streamed_windows_is_refused():
    with pytest.raises(ConfigError, match="mix needs all windows in memory"):
        Transforms(Mixup(settings()), Streamed(), 0)
