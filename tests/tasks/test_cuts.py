"""Two cuts of a batch: the sentence on a training's numbers, and that the model stays as it was."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

import sp500
from sp500.config import RunConfig
from sp500.data.batches import Batch
from sp500.data.windows import Dataset
from sp500.models.dropout import Dropout
from sp500.tasks import catalog
from sp500.tasks.cuts import DEPENDS, DRAWS, HIDDEN, LARGE, SAME, UNTRIED, try_cuts
from sp500.tasks.synthetic import Synthetic
from sp500.training.throughput import ModelCost
from sp500.training.trainer import Trainer


def settings(**more: Any) -> RunConfig:
    changed = {"synthetic": {"samples": 80, "features": 6}, "num_workers": 2, **more}
    return RunConfig.model_validate({"task": "synthetic", "model": {"kind": "mlp"}} | changed)


class Net(nn.Module):
    """Layers in order, after a function of the batch."""

    def __init__(self, *layers: nn.Module, first: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.layers, self.first = nn.Sequential(*layers), first

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.first(x[:, 0]))


class Recurrent(nn.Module):
    """Outputs of which the state has the layers first."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x.repeat(1, 3, 1))[0][:, -1]


class Single(nn.Module):
    """A layer that only float32 passes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), torch.ones(4, 6))


class Queue(nn.Module):
    """A layer that answers by the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        before = self.last.clone()
        self.last.copy_(x[0].detach())
        return x + before


class Flat(Net):
    """Outputs without rows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten()


class Forbidding(Net):
    """Outputs that are infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(torch.arange(4) == 3, -torch.inf)


class Chancy(nn.Module):
    """A layer that draws as a function does."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x)


class Dropped(Net):
    """Layers that a whole batch skips by chance."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (torch.rand(()) < 0.5)


@dataclass(frozen=True)
class Own(Synthetic):
    """A task with a network of this test's."""

    make: Callable[[], nn.Module] = lambda: Net(nn.Linear(6, 4))
    collate: Callable[[list[Any]], Any] = default_collate

    def prepare(self, config: RunConfig) -> Dataset:
        if self.collate is default_collate:
            return super().prepare(config)
        rows = [(row, number % 4) for number, row in enumerate(torch.randn(20, 6))]
        return sp500.from_torch(rows, rows, rows, config=config, identity="rows", collate=self.collate)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return super().loss(output.view(-1, 4), target)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        return self.make()


@dataclass(frozen=True)
class Chance(Own):
    def transform(self, x: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x + random.random(), target


@dataclass(frozen=True)
class Mixed(Own):
    def transform(self, x: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x + rng.normal(), F.one_hot(target, 4).to(x.dtype)

    def mix(
        self, x: Tensor, target: Tensor, x2: Tensor, target2: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        share = float(rng.beta(0.4, 0.4))
        return torch.lerp(x2, x, share), torch.lerp(target2, target, share)


@dataclass(frozen=True)
class Batchwise(Own):
    """Mixup whose partners are the windows of a worker's own part."""

    def transform_batch(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return torch.lerp(x.flip(0), x, 0.7), targets


@dataclass(frozen=True)
class Windowwise(Own):
    def transform_batch(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x / x.norm(dim=2, keepdim=True), targets


@dataclass(frozen=True)
class Stepped(Own):
    """A step that passes parts of the model."""

    def noise(self, trainer: Trainer, x: Tensor) -> Tensor:
        return trainer.draw_normal(6)

    def step(self, trainer: Trainer, batch: Batch) -> Tensor:
        layers: Any = trainer.model.layers
        hidden = trainer.forward(layers[0], batch.x[:, 0] + self.noise(trainer, batch.x[:, 0]))
        loss = F.cross_entropy(trainer.forward(layers[1:], hidden), batch.y, reduction="sum")
        trainer.update(loss, batch.total)
        return loss


@dataclass(frozen=True)
class Contrasted(Own):
    """A step whose loss compares the windows with each other."""

    def step(self, trainer: Trainer, batch: Batch) -> Tensor:
        outputs = F.normalize(trainer.forward(trainer.model, batch.x), dim=1)
        loss = F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="sum")
        trainer.update(loss, batch.total)
        return loss


@dataclass(frozen=True)
class Averaged(Own):
    """A step that takes the mean of its part."""

    def step(self, trainer: Trainer, batch: Batch) -> Tensor:
        loss = self.loss(trainer.forward(trainer.model, batch.x), batch.y)
        trainer.update(loss / len(batch.x), 1)
        return loss


@dataclass(frozen=True)
class NoisyLoss(Own):
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return super().loss(output + torch.randn_like(output), target)


@dataclass(frozen=True)
class Noisy(Stepped):
    def noise(self, trainer: Trainer, x: Tensor) -> Tensor:
        return torch.randn_like(x)


def net(*layers: nn.Module, kind: type[Net] = Net, **more: Any) -> Callable[[], nn.Module]:
    return lambda: deepcopy(kind(*layers, **more))


def centre(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(rows)
    return x - x.mean(dim=0), y


LINEAR, ZEROS = nn.Linear(6, 4), nn.Linear(6, 4)
nn.init.zeros_(ZEROS.weight)
CASES: dict[str, tuple[type[Own], Callable[[], nn.Module], str]] = {
    "own dropout": (Own, net(Dropout(0.5), LINEAR), SAME),
    "group normalisation": (Own, net(nn.GroupNorm(2, 6), LINEAR), SAME),
    "recurrent": (Own, lambda: Recurrent(0.0), SAME),
    "transform and mix": (Mixed, net(LINEAR), SAME),
    "transform_batch by window": (Windowwise, net(LINEAR), SAME),
    "step": (Stepped, net(nn.Linear(6, 6), Dropout(0.2), LINEAR), SAME),
    "dropout": (Own, net(nn.Dropout(0.5), LINEAR), DRAWS.format("layer layers.0")),
    "dropout in place": (Own, net(LINEAR, nn.Dropout(0.5, inplace=True)), DRAWS.format("layer layers.1")),
    "recurrent dropout": (Own, lambda: Recurrent(0.5), DRAWS.format("layer lstm")),
    "a function's dropout": (Own, net(LINEAR, first=F.dropout), HIDDEN.format("layer Net")),
    "layers that are skipped": (Own, net(LINEAR, kind=Dropped), DRAWS.format("layer Dropped")),
    "loss by chance": (NoisyLoss, net(LINEAR), HIDDEN.format("loss")),
    "transform by chance": (Chance, net(LINEAR), DRAWS.format("transform")),
    "step by chance": (Noisy, net(nn.Linear(6, 6), LINEAR), HIDDEN.format("step")),
    "dropout in a step": (Stepped, net(nn.Linear(6, 6), nn.Dropout(0.2), LINEAR), DRAWS.format("layer layers.1")),
    "batch normalisation": (Own, net(nn.Linear(6, 6), nn.BatchNorm1d(6), LINEAR), DEPENDS.format("layer layers.1")),
    "queue": (Own, net(Queue(), LINEAR), DEPENDS.format("buffer layers.0.last")),
    "flattened": (Own, net(nn.BatchNorm1d(6), LINEAR, kind=Flat), DEPENDS.format("layer layers.0")),
    "infinite": (Own, net(nn.BatchNorm1d(6), LINEAR, kind=Forbidding), DEPENDS.format("layer layers.0")),
    "before a function's dropout": (
        Own,
        net(nn.BatchNorm1d(6), Chancy(), LINEAR),
        DEPENDS.format("layer layers.0"),
    ),
    "behind a function's dropout": (Own, net(nn.BatchNorm1d(6), LINEAR, first=F.dropout), HIDDEN.format("layer Net")),
    "contrasted in a step": (Contrasted, net(LINEAR), DEPENDS.format("step")),
    "mean in a step": (Averaged, net(LINEAR), DEPENDS.format("step")),
    "three windows at least": (
        Own,
        net(LINEAR, first=lambda x: x[torch.cdist(x, x).topk(3).indices].mean(1)),
        UNTRIED.format("RuntimeError: selected index k out of range"),
    ),
    "both": (Own, net(nn.Dropout(0.5), nn.BatchNorm1d(6), LINEAR), DEPENDS.format("layer layers.1")),
    "behind zeros": (Own, net(nn.BatchNorm1d(6), ZEROS), DEPENDS.format("layer layers.0")),
    "before a norm": (
        Own,
        net(nn.BatchNorm1d(6), LINEAR, nn.LayerNorm(4, elementwise_affine=False)),
        DEPENDS.format("layer layers.0"),
    ),
    "in float32 only": (Own, net(nn.BatchNorm1d(6), Single()), DEPENDS.format("layer layers.0")),
    "a function of the batch": (Own, net(LINEAR, first=lambda x: x - x.mean(dim=0)), DEPENDS.format("layer Net")),
    "mixed by batch": (Batchwise, net(nn.Dropout(0.5), LINEAR), DEPENDS.format("transform_batch")),
    "normalised in a step": (
        Stepped,
        net(nn.Linear(6, 6), nn.BatchNorm1d(6), LINEAR),
        DEPENDS.format("layer layers.1"),
    ),
}


def note(task: Synthetic, config: RunConfig, cost: ModelCost | None = None, *, gpu: bool = False) -> list[str]:
    return try_cuts(task, task.prepare(config), config, cost, gpu=gpu).card["notes"]


@pytest.mark.parametrize("case", CASES)
def test_sentence_says_what_the_numbers_depend_on(case, caplog):
    kind, make, expected = CASES[case]
    config = settings()
    seed()
    untouched = draws()
    seed()
    with caplog.at_level(logging.WARNING):
        assert note(kind(config, make=make), config) == [expected]
    assert [record.getMessage() for record in caplog.records] == [expected] * (expected != SAME)
    assert draws() == untouched


def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)


def draws() -> list[float]:
    """What the generators draw next. Python's is left out: beartype draws from it, in tests only."""
    return [float(torch.rand(1)), np.random.rand()]


@pytest.mark.parametrize("kind", ["mlp", "lstm", "transformer"])
def test_built_in_models_give_the_same_numbers(kind):
    config = RunConfig.model_validate({"task": "returns", "model": {"kind": kind, "dropout": 0.2}, "num_workers": 3})
    task = catalog.task(config)
    assert try_cuts(task, task.prepare(config), config, None, gpu=False).card["notes"][-1] == SAME


def test_only_cut_batches_of_small_models_are_tried_and_gpus_share_statistics():
    make = net(nn.BatchNorm1d(6), LINEAR)
    cut = {"train": {"micro_batch": 4}, "num_workers": 0}
    for config, gpu, expected in (
        (settings(num_workers=1), False, []),
        (settings(**cut), False, [DEPENDS.format("layer layers.0")]),
        (settings(**cut), True, [DEPENDS.format("layer layers.0")]),
        (settings(), True, [SAME]),
        (settings(train={"per_worker_batch": True}), True, [DEPENDS.format("train.per_worker_batch")]),
    ):
        assert note(Own(config, make=make), config, gpu=gpu) == expected
    large = ModelCost(10**9, 0, 1e6, "windows", 1)
    assert note(Own(settings(), make=make), settings(), large) == [LARGE]
    assert note(Own(settings(), make=net(nn.Linear(6, 4), nn.Linear(4, 4_000_000))), settings()) == [LARGE]


@pytest.mark.parametrize(
    ("workers", "micro_batch", "expected"), [(2, 0, SAME), (0, 4, DEPENDS.format("layer layers.0"))]
)
def test_state_that_each_pass_moves_on_depends_on_micro_batches_only(workers, micro_batch, expected):
    config = settings(num_workers=workers, train={"micro_batch": micro_batch})
    make = net(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=1))
    assert note(Own(config, make=make), config) == [expected]


def test_collate_that_sees_the_batch_is_named():
    assert note(Own(settings(), collate=centre), settings()) == [DEPENDS.format("collate")]


def test_model_of_the_user_stays_as_it_is():
    model = Net(Dropout(0.5), nn.Dropout(0.5), nn.BatchNorm1d(6), ZEROS)
    before = deepcopy(model.state_dict())
    assert note(Own(settings(), make=lambda: model), settings()) == [DEPENDS.format("layer layers.2")]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [(layer.training, len(layer._forward_hooks)) for layer in model.modules()] == [(True, 0)] * 6
    assert [layer.rate for layer in model.modules() if isinstance(layer, Dropout)] == [0.5]
