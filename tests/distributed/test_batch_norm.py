"""Batch normalisation over ranks: all end with the statistics of rank 0, which the checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group
from torch import nn

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.windows import Dataset
from sp500.models import batch_norm
from sp500.tasks.images import Images
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.worker import GroupWorker

CPU = torch.device("cpu")
WORLD = 2
WAYS = [*product(("ddp", "fsdp"), (0, 10))]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0].permute(0, 3, 1, 2).double() / 16


@dataclass(frozen=True)
class Normalized(Images):
    """Images by a network with batch normalisation. `made` keeps the model that is trained."""

    made: list[nn.Module] = field(default_factory=list)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        layers = [Scaled(), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(1)]
        self.made.append(nn.Sequential(*layers, nn.Linear(144, dataset.outputs)))
        return self.made[-1]


def settings(parallel: str, micro_batch: int) -> RunConfig:
    # Of 1,261 images in batches of 60 the last one has a single one: rank 1 computes an image that does not count. The
    # second epoch ends after eight whole batches, with other images on each rank.
    train = {"epochs": 2, "max_steps": 30, "batch_size": 60, "dtype": "float64"}
    train |= {"parallel": parallel, "micro_batch": micro_batch}
    return RunConfig(task="images", model=ModelConfig(kind="cnn"), train=TrainConfig.model_validate(train))


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=WORLD)
    for parallel, micro_batch in WAYS:
        config = settings(parallel, micro_batch)
        task, run = Normalized(config), folder / f"{parallel}-{micro_batch}"
        dataset = task.prepare(config)
        result = fit(task, dataset, config, GroupWorker(rank, WORLD, CPU), Checkpoints(run, "norm"))
        found = [value.numpy() for value in batch_norm.statistics(task.made[-1])]
        np.savez(folder / f"{parallel}-{micro_batch}-{rank}.npz", *found, loss=result.best_loss)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each rank holds after training."""
    folder = tmp_path_factory.mktemp("ranks")
    run_group(WORLD, train_as_rank, folder)
    return folder


@pytest.mark.parametrize(("parallel", "micro_batch"), WAYS)
def test_every_rank_holds_the_statistics_of_the_checkpoint(trained, parallel, micro_batch):
    first, second = (dict(np.load(trained / f"{parallel}-{micro_batch}-{rank}.npz")) for rank in range(WORLD))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    kept = Checkpoints(trained / f"{parallel}-{micro_batch}", "norm").best()
    np.testing.assert_array_equal(kept["2.running_mean"], first["arr_0"])
    assert int(kept["2.num_batches_tracked"]) == (21 + 8) * (3 if micro_batch else 1) + 1


def test_ddp_and_fsdp_hold_the_same_statistics(trained):
    for micro_batch in (0, 10):
        ddp, fsdp = (dict(np.load(trained / f"{parallel}-{micro_batch}-1.npz")) for parallel in ("ddp", "fsdp"))
        for name in ddp:
            np.testing.assert_allclose(fsdp[name], ddp[name], rtol=0, atol=1e-9)


def test_layers_become_torchs_synchronized_ones_with_their_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model(torch.randn(5, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch_norm.synchronize(model)
    assert isinstance(model[1], nn.SyncBatchNorm)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert batch_norm.normalizes_batches(model)


def test_library_converts_its_own_layers():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm: nn.Module = nn.BatchNorm1d(3)

        def synchronize(self) -> None:
            self.norm = nn.Identity()

    model = nn.Sequential(Own())
    batch_norm.synchronize(model)
    assert isinstance(model[0].norm, nn.Identity)
