"""A training step of the user's own: a GAN with two optimisers, alone and on two workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from forks import run_group
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.batches import Batch
from sp500.data.windows import Dataset
from sp500.errors import ConfigError, SP500Error
from sp500.models.dropout import Dropout
from sp500.tasks.synthetic import Synthetic
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.task import Task
from sp500.training.trainer import Trainer
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")


class Pair(nn.Module):
    """A generator of rows, and a discriminator whose last four outputs are the task's."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, features))
        self.discriminator = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), Dropout(0.2), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.discriminator(x[:, 0])


@dataclass(frozen=True)
class Gan(Synthetic):
    """Rows that a discriminator cannot tell from those of the data (Goodfellow et al. 2014, arXiv:1406.2661)."""

    fault: str = ""

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        return Pair(dataset.features)

    def optimizers(self, model: nn.Module, config: RunConfig) -> dict[str, Optimizer]:
        assert isinstance(model, Pair)
        return {
            "generator": Adam(model.generator.parameters(), lr=config.lr, betas=(0.5, 0.99)),
            "discriminator": SGD(model.discriminator.parameters(), lr=config.lr, momentum=0.9),
        }

    def step(self, trainer: Trainer, batch: Batch) -> Tensor:
        model = trainer.model
        assert isinstance(model, Pair)
        if self.fault == "past":
            model.discriminator(batch.x[:, 0])
        fake = trainer.forward(model.generator, trainer.draw_normal(3))
        real, false = (trainer.forward(model.discriminator, rows)[:, 0] for rows in (batch.x[:, 0], fake.detach()))
        discriminated = F.softplus(-real).sum() + F.softplus(false).sum()
        trainer.update(discriminated, batch.total, "discriminator")
        generated = F.softplus(-trainer.forward(model.discriminator, fake)[:, 0]).sum()
        trainer.update(generated, batch.total, "generator")
        if self.fault == "weights":
            with torch.no_grad():
                next(model.parameters()).add_(float(batch.x[0, 0, 0]))
        return discriminated


def settings(**train: object) -> RunConfig:
    # The last batch of 280 has 10 windows.
    plain = {"epochs": 2, "batch_size": 45, "lr": 0.01, "dtype": "float64", "checkpoint_steps": 4, **train}
    return RunConfig(
        task="synthetic",
        synthetic={"samples": 400, "features": 5},
        model=ModelConfig(kind="mlp"),
        train=TrainConfig.model_validate(plain),
    )


def train(worker: Worker, folder: Path, fault: str = "", **changed: object) -> None:
    task: Task = Gan(settings(**changed), fault=fault)
    fit(task, task.prepare(settings()), settings(**changed), worker, Checkpoints(folder, "gan"))


def last(folder: Path) -> dict[str, Tensor]:
    snapshot = Checkpoints(folder, "gan").resume()
    assert snapshot
    return snapshot[0].model


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    worker = GroupWorker(rank, 2, CPU)
    train(worker, folder / "ranks")
    with pytest.raises(ConfigError, match=r"write trainer.forward\(trainer.model.discriminator, ...\)"):
        train(worker, folder / "past", "past")
    with pytest.raises(SP500Error, match="workers have different weights"):
        train(worker, folder / "weights", "weights")
    dist.destroy_process_group()


def test_two_workers_train_a_gan_as_one_process_and_mistakes_are_named(tmp_path):
    train(SoloWorker(CPU), tmp_path / "solo")
    run_group(2, train_as_rank, tmp_path)
    expected, ranks = last(tmp_path / "solo"), last(tmp_path / "ranks")
    for name, weight in expected.items():
        np.testing.assert_allclose(ranks[name], weight, rtol=0, atol=1e-9)
    task = Gan(settings())
    torch.manual_seed(0)
    untrained = task.model(settings(), task.prepare(settings())).state_dict()
    assert all(not torch.equal(untrained[name].double(), weight) for name, weight in expected.items())


@pytest.mark.parametrize("changed", [{"parallel": "fsdp"}, {"micro_batch": 5}, {"compile": True}], ids=str)
def test_settings_that_do_not_go_with_an_own_step_are_refused(changed, tmp_path):
    with pytest.raises(ConfigError, match=f"train.{next(iter(changed))}.* does not go with a task that has its own"):
        train(SoloWorker(CPU), tmp_path, **changed)


class Frozen(Gan):
    """A GAN whose generator keeps its first weights, and whose optimisers have names of their own."""

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        model = super().model(config, dataset)
        assert isinstance(model, Pair)
        model.generator[0].weight.requires_grad_(requires_grad=False)
        return model

    def optimizers(self, model: nn.Module, config: RunConfig) -> dict[str, Optimizer]:
        named = super().optimizers(model, config)
        return {"weights": named.pop("generator"), **named} if self.fault == "name" else named


def test_frozen_weight_in_an_optimiser_stays_as_it_is(tmp_path):
    config = settings(epochs=1, checkpoint_steps=1)
    task = Frozen(config)
    fit(task, task.prepare(config), config, SoloWorker(CPU), Checkpoints(tmp_path / "one", "gan"))
    longer = settings(epochs=2, checkpoint_steps=1)
    fit(task, task.prepare(longer), longer, SoloWorker(CPU), Checkpoints(tmp_path / "two", "gan"))
    one, two = last(tmp_path / "one"), last(tmp_path / "two")
    assert torch.equal(one["generator.0.weight"], two["generator.0.weight"])
    assert not torch.equal(one["generator.0.bias"], two["generator.0.bias"])


def test_name_that_an_average_uses_in_checkpoints_is_refused():
    config = settings(ema=0.9)
    task = Frozen(config, fault="name")
    with pytest.raises(ConfigError, match="optimizer name 'weights'"):
        fit(task, task.prepare(config), config, SoloWorker(CPU))
