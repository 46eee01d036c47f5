"""Parity: the same losses and weights however a batch is cut, over workers and micro-batches, by DDP and FSDP."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.batches import Batch
from sp500.data.windows import MASKED, Dataset
from sp500.errors import CheckpointError
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.step import Stepper
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
MODELS = ("ragged", "dropout")
CUTS = [{"micro_batch": size, "parallel": parallel} for size, parallel in product((0, 1), ("ddp", "fsdp"))]
WINDOWS = 13
RESUMED = "dropout-0-fsdp"
"""The training that is interrupted at step 3, and goes on from the checkpoint of step 2, split over the ranks."""


def settings(kind: str, **train: object) -> RunConfig:
    # 13 windows in batches of 4: three ranks get two, two and none, and of the last batch one rank gets the one.
    wanted = {"epochs": 2, "batch_size": 4, "max_steps": 5, "lr": 0.01, "dtype": "float64", "clip": 0.5}
    model = {"kind": "gpt", "hidden": 16, "layers": 2, "heads": 2, "dropout": 0.1 if kind == "dropout" else 0.0}
    return RunConfig.model_validate(
        {
            "task": "language",
            "text": {"max_bytes": 6_000, "context": 8},
            "model": model,
            "train": {**wanted, "decay": "matrices", "weight_decay": 0.1, "warmup": 0.2, "schedule": "cosine", **train},
        }
    )


def data(kind: str) -> Dataset:
    config = settings(kind)
    made = catalog.task(config).prepare(config)
    targets = made.train.targets[:WINDOWS].astype(np.int64)
    train = replace(made.train, starts=made.train.starts[:WINDOWS], targets=targets)
    if kind == "ragged":  # windows with 0 to 8 targets that count
        kept = np.arange(8) < np.random.default_rng(0).integers(0, 9, WINDOWS)[:, None]
        train = replace(train, targets=np.where(kept, train.targets, MASKED))
    assert made.valid is not None
    valid, test = (replace(part, starts=part.starts[:5], targets=part.targets[:5]) for part in (made.valid, made.test))
    return replace(made, train=train, valid=valid, test=test)


def trained(kind: str, worker: Worker, folder: Path, **train: object) -> tuple[list[float | None], dict[str, Tensor]]:
    """Losses of each epoch, and the last weights as they were saved."""
    config = settings(kind, **train)
    checkpoints = Checkpoints(folder, "parity")
    result = fit(catalog.task(config), data(kind), config, worker, checkpoints)
    losses = [loss for epoch in result.epochs for loss in (epoch.train_loss, epoch.valid_loss)]
    found = checkpoints.resume()
    assert found is not None
    return losses, found[0].model


def name(kind: str, cut: dict[str, object]) -> str:
    return f"{kind}-{cut['micro_batch']}-{cut['parallel']}"


def train_as_rank(rank: int, world: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    worker = GroupWorker(rank, world, CPU)
    for kind, cut in product(MODELS, CUTS):
        run = folder / name(kind, cut)
        if run.name == RESUMED:
            interrupt_inside_an_epoch(worker, run)
        losses, _ = trained(kind, worker, run, **cut, checkpoint_steps=2 if run.name == RESUMED else 0)
        if rank == 0:
            np.save(run / "losses.npy", losses)
    if world > 1:
        assert_each_rank_holds_a_part(worker)
        refuse_different_folders(worker, folder)
    dist.destroy_process_group()


def assert_each_rank_holds_a_part(worker: GroupWorker) -> None:
    config = settings("dropout")
    model = catalog.task(config).model(config, data("dropout"))
    whole = sum(parameter.numel() for parameter in model.parameters())
    worker.wrap(model, "fsdp")
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    assert held < 0.6 * whole
    assert int(worker.total(torch.tensor(held))) == whole


def interrupt_inside_an_epoch(worker: GroupWorker, folder: Path) -> None:
    take = Stepper.take

    def interrupted(self: Stepper, batch: Batch, step: int) -> Tensor:
        if step == 3:
            raise Interrupted
        return take(self, batch, step)

    Stepper.take = interrupted
    with pytest.raises(Interrupted):
        trained("dropout", worker, folder, parallel="fsdp", checkpoint_steps=2)
    Stepper.take = take
    dist.barrier()  # the other ranks read what rank 0 has written
    found = Checkpoints(folder, "parity").resume()
    assert found is not None
    assert found[0].progress["step"] == 2


def refuse_different_folders(worker: GroupWorker, folder: Path) -> None:
    own = folder / RESUMED if worker.rank == 0 else folder / f"nothing-{worker.rank}"
    with pytest.raises(CheckpointError, match="different checkpoints"):
        trained("dropout", worker, own, parallel="fsdp", checkpoint_steps=2)


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[float | None], dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("solo")
    return {kind: trained(kind, SoloWorker(CPU), folder / kind) for kind in MODELS}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_cut_of_the_batch_gives_the_losses_and_weights_of_one_process(solo, tmp_path, world):
    run_group(world, train_as_rank, world, tmp_path)
    for kind, cut in product(MODELS, CUTS):
        folder = tmp_path / name(kind, cut)
        losses, weights = solo[kind]
        np.testing.assert_allclose(np.load(folder / "losses.npy"), losses, rtol=0, atol=1e-9, err_msg=folder.name)
        found = Checkpoints(folder, "parity").resume()
        assert found is not None
        assert found[0].model.keys() == weights.keys()
        for key, value in weights.items():
            np.testing.assert_allclose(found[0].model[key], value, rtol=0, atol=1e-9, err_msg=f"{folder.name} {key}")


def test_the_two_kinds_train_different_models(solo):
    assert len({losses[0] for losses, _ in solo.values()}) == len(MODELS)
