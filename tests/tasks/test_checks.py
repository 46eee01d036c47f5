"""Models of a user's own whose weights lie in memory in unusual ways, or of which forward uses a part."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group
from safetensors.torch import load

from sp500.config import RunConfig
from sp500.errors import ConfigError, DataError, SP500Error
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints, read_weights
from sp500.training.loop import FitResult, fit
from sp500.training.step import Stepper
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
NETS = '''
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """8 units between 6 numbers and the classes."""

    def __init__(self, config, dataset):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, dataset.outputs)
        self.add()

    def add(self):
        pass

    def hidden(self, x):
        return torch.tanh(self.first(x.flatten(1)))

    def more(self, hidden):
        return hidden

    def forward(self, x):
        return self.head(self.more(self.hidden(x)))


class ChannelsLast(Net):
    def add(self):
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
        self.net.to(memory_format=torch.channels_last)

    def more(self, hidden):
        return self.net(hidden.view(-1, 1, 2, 4)).mean(1).flatten(1)


class Transposed(Net):
    def add(self):
        self.weight = nn.Parameter(torch.randn(4, 8).t())

    def more(self, hidden):
        return hidden @ self.weight @ self.weight.t()


class Tied(Net):
    def add(self):
        self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8)
        self.third.weight = self.second.weight

    def more(self, hidden):
        return self.third(torch.tanh(self.second(hidden)))


class Halves(Net):
    def add(self):
        both = torch.randn(2, 8, 8)
        self.left, self.right = nn.Parameter(both[0]), nn.Parameter(both[1])
        self.register_buffer("table", torch.arange(16.0).view(2, 8))
        self.register_buffer("row", self.table[1])
        self.register_buffer("columns", self.table.t())

    def more(self, hidden):
        return hidden @ self.left @ self.right + self.row / 16 + self.columns[:, 0]


class Gaps(Net):
    def add(self):
        self.weight = nn.Parameter(torch.randn(8, 16)[:, ::2])

    def more(self, hidden):
        return hidden @ self.weight


class Repeats(Net):
    def add(self):
        self.scale = nn.Parameter(torch.ones(1).expand(8))

    def more(self, hidden):
        return hidden * self.scale


class Overlap(Net):
    def add(self):
        self.second = nn.Linear(8, 8)
        self.weight = nn.Parameter(self.second.weight.detach().t())

    def more(self, hidden):
        return self.second(hidden) @ self.weight


class RepeatedBuffer(Net):
    def add(self):
        self.register_buffer("shift", torch.ones(1).expand(8))

    def more(self, hidden):
        return hidden + self.shift


class NotKept(Net):
    def add(self):
        self.scale = torch.rand(8)

    def more(self, hidden):
        return hidden * self.scale


class MadeLate(Net):
    def more(self, hidden):
        if not hasattr(self, "late"):
            self.late = nn.Linear(8, 8)
        return self.late(hidden)


class Poisoned(Net):
    calls = 0

    def __init__(self, config, dataset, *, at):
        super().__init__(config, dataset)
        self.at = at

    def more(self, hidden):
        self.calls += self.training
        return hidden * torch.nan if self.training and self.calls == self.at else hidden


class Unused(Net):
    def add(self):
        self.extra = nn.Linear(8, 8)


class EverySecondBatch(Unused):
    calls = 0

    def more(self, hidden):
        self.calls += self.training
        return self.extra(hidden) if self.training and self.calls % 2 else hidden


class Frozen(Unused):
    def add(self):
        super().add()
        self.extra.requires_grad_(False)
'''


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    return path


def settings(
    nets: Path, name: str, epochs: int = 4, *, samples: int = 300, options: dict[str, int] | None = None, **train: Any
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "task": "synthetic",
            "synthetic": {"samples": samples, "features": 6},
            "model": {"kind": f"{nets}:{name}", "options": options or {}},
            "train": {"epochs": epochs, "lr": 0.01, "batch_size": 50, "dtype": "float64", "early_stop_patience": 0}
            | train,
        }
    )


def train(config: RunConfig, worker: Worker | None = None, folder: Path | None = None) -> FitResult:
    task = catalog.task(config)
    saved = Checkpoints(folder, "mine", form=config.train.checkpoint) if folder else None
    return fit(task, catalog.prepare(task, config), config, worker or SoloWorker(CPU), saved)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["ChannelsLast", "Transposed", "Tied", "Halves"])
def test_interrupted_training_of_weights_in_any_layout_ends_in_the_same_bits(nets, tmp_path, name, dtype):
    whole = train(settings(nets, name, dtype=dtype), folder=tmp_path / "whole")
    train(settings(nets, name, 2, dtype=dtype), folder=tmp_path / "cut")
    resumed = train(settings(nets, name, dtype=dtype), folder=tmp_path / "cut")
    assert [epoch.valid_loss for epoch in resumed.epochs] == [epoch.valid_loss for epoch in whole.epochs]
    assert resumed.outputs["test"].tobytes() == whole.outputs["test"].tobytes()
    assert read_weights(tmp_path / "cut" / "last") == read_weights(tmp_path / "whole" / "last")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Gaps", r"parameter weight \[8, 8\] is a view"),
        ("Repeats", r"parameter scale \[8\] is a view"),
        ("Overlap", "parameters second.weight and weight share memory"),
        ("RepeatedBuffer", "cannot be saved and loaded"),
        ("NotKept", "answers differ by up to .*register_buffer"),
        ("MadeLate", "cannot be saved and loaded .*late"),
    ],
)
def test_model_that_cannot_be_trained_or_kept_is_refused_before_training(nets, name, said):
    config = settings(nets, name, dtype="float32")
    with pytest.raises(DataError, match=f"(?s){said}"):
        catalog.prepare(catalog.task(config), config)


def test_weights_that_forward_does_not_use_are_named(nets, caplog):
    for name, named in (("Unused", True), ("Frozen", False), ("EverySecondBatch", False), ("Net", False)):
        caplog.clear()
        config = settings(nets, name)
        with caplog.at_level(logging.WARNING):
            catalog.prepare(catalog.task(config), config)
        assert ("extra.weight, extra.bias" in caplog.text) == named, name


PARTS = ("Unused", "EverySecondBatch", "Frozen")
FORMS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "micro": {"micro_batch": 10},
    "fsdp": {"parallel": "fsdp", "checkpoint": "sharded"},
}


def cases() -> list[tuple[str, str]]:
    # A layer of every second call depends on the micro-batches, of which each of two workers has fewer.
    return [(form, name) for form in FORMS for name in (*PARTS, "Tied") if (form, name) != ("micro", PARTS[1])]


def train_as_rank(rank: int, nets: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{nets.parent}/group", rank=rank, world_size=2)
    found = {}
    for form, name in cases():
        folder = nets.parent / form / name if form == "fsdp" else None
        result = train(settings(nets, name, **FORMS[form]), GroupWorker(rank, 2, CPU), folder)
        found[f"{form} {name}"] = result.outputs["test"]
    with pytest.raises(ConfigError, match="fsdp cannot split"):
        train(settings(nets, "Transposed", parallel="fsdp"), GroupWorker(rank, 2, CPU))
    if rank == 0:
        np.savez(nets.parent / "found.npz", **found)
    dist.destroy_process_group()


def test_two_workers_train_layers_that_no_or_not_every_batch_uses_as_one_does(nets):
    run_group(2, train_as_rank, nets)
    with np.load(nets.parent / "found.npz") as found:
        for form, name in cases():
            alone = train(settings(nets, name, **({} if form == "fsdp" else FORMS[form]))).outputs["test"]
            np.testing.assert_allclose(found[f"{form} {name}"], alone, rtol=0, atol=1e-9, err_msg=f"{form} {name}")
    tied = load(read_weights(nets.parent / "fsdp" / "Tied" / "last"))
    assert torch.equal(tied["second.weight"], tied["third.weight"])


@pytest.mark.parametrize("step", [5, 250])
def test_first_loss_that_is_not_finite_is_named_within_a_hundred_steps(nets, step):
    config = settings(nets, "Poisoned", samples=20_000, options={"at": step}, batch_size=10)
    with (
        patch.object(Stepper, "take", autospec=True, side_effect=Stepper.take) as taken,
        pytest.raises(
            SP500Error, match=f"loss of step {step} of epoch 1 is not finite; the losses before it did not rise"
        ),
    ):
        train(config)
    assert taken.call_count < step + 100 + 2  # one is the check's
