"""A dataset of torch as it is: the same samples for any number of workers, loaders and after an interruption."""

from __future__ import annotations

import pickle
import random
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
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

import sp500
from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data.samples import UNKNOWN, Samples
from sp500.errors import DataError
from sp500.tasks import checks
from sp500.tasks.synthetic import Synthetic
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
X, Y = load_digits(return_X_y=True)


class Digits(TorchDataset[tuple[Tensor, int]]):
    """Digits that are moved and get noise, by the generators of torch, NumPy and Python."""

    def __init__(self, first: int, last: int, kind: str = "random") -> None:
        self.first, self.count, self.kind = first, last - first, kind
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number >= self.count:
            raise IndexError(number)
        x = torch.from_numpy(X[self.first + number].astype(np.float32) / 16)
        if self.kind == "random":
            x = x.roll(random.randrange(3) - 1) * (1 + 0.1 * np.random.rand()) + 0.01 * torch.randn(64)
        if self.kind == "own":
            x = x + self.own.normal()
        if self.kind == "uneven":
            x = x[: 32 + number]
        return x, int(Y[self.first + number])


class Stream(IterableDataset[tuple[Tensor, int]]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield from ()


def settings(loaders: int = 0, **train: object) -> RunConfig:
    plain = {"epochs": 2, "batch_size": 50, "lr": 0.01, "dtype": "float64", "checkpoint_steps": 4, **train}
    return RunConfig(
        task="synthetic",
        data=DataConfig(loaders=loaders),
        model=ModelConfig(kind="mlp", hidden=8, dropout=0.2),
        train=TrainConfig.model_validate(plain),
    )


@dataclass(frozen=True)
class Mixed(Synthetic):
    """The class of a digit, with mixup."""

    def prepare(self, config: RunConfig) -> sp500.Dataset:
        parts = Digits(0, 280), Digits(280, 340, "plain"), Digits(340, 400, "plain")
        return sp500.from_torch(*parts, config=config, identity="digits")

    def mix(
        self, x: Tensor, target: Tensor, x2: Tensor, target2: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        share, classes = float(rng.beta(1, 1)), torch.stack([target, target2])
        soft = F.one_hot(classes, 10).double()
        return torch.lerp(x2, x, share), torch.lerp(soft[1], soft[0], share)


def outputs(config: RunConfig, worker: Worker, folder: Path | None = None) -> np.ndarray:
    task, checkpoints = Mixed(config), Checkpoints(folder, "x") if folder else None
    data = pickle.loads(pickle.dumps(task.prepare(config)))  # as a worker of Ray gets it
    return fit(task, data, config, worker, checkpoints).outputs["test"]


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    found = outputs(settings(loaders=1, micro_batch=9), GroupWorker(rank, 2, CPU))
    if rank == 0:
        np.save(folder / "ranks.npy", found)
    dist.destroy_process_group()


def test_ranks_loaders_and_a_resumed_run_end_as_one_process_that_reads_itself(tmp_path):
    before = torch.get_rng_state()
    straight = outputs(settings(), SoloWorker(CPU), tmp_path)
    shutil.rmtree(tmp_path / "epoch-00002")
    assert np.array_equal(outputs(settings(loaders=2), SoloWorker(CPU), tmp_path), straight)
    assert np.array_equal(outputs(settings(loaders=2), SoloWorker(CPU)), straight)
    torch.set_rng_state(before)
    run_group(2, train_as_rank, tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "ranks.npy"), straight, rtol=0, atol=1e-9)


def test_samples_take_no_memory_and_have_the_targets_of_the_dataset():
    data = Mixed(settings()).prepare(settings())
    assert isinstance(data.train, Samples)
    assert len(pickle.dumps(data.train)) < 20_000 < data.train.rows.nbytes
    assert np.array_equal(data.train.targets, Y[:280])
    assert np.array_equal(data.test.rows, (X[340:400].astype(np.float32) / 16).astype(np.float64))
    assert (data.outputs, data.row, data.card["source"], data.card["notes"]) == (10, (64,), "digits", [])
    assert checks.check(Mixed(settings()), settings(), data) is data


def test_identity_is_a_text_files_or_some_samples(tmp_path):
    def card(end: int = 100, identity: object = "") -> sp500.Dataset:
        parts = Digits(0, end), None, Digits(100, 110, "plain")
        return sp500.from_torch(*parts, config=settings(), identity=identity).card

    file = tmp_path / "data.bin"
    file.write_bytes(b"one")
    first = card(identity=[file])["sha256"]
    file.write_bytes(b"other")
    hashes = [first, card(identity=[file])["sha256"], card(identity="a")["sha256"], card()["sha256"]]
    assert len({*hashes, card(99)["sha256"]}) == 5
    assert (card()["sha256"], card()["notes"]) == (hashes[3], [UNKNOWN])


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (Digits(0, 50, "own"), "Digits: sample 0 differs when it is read twice"),
        (Digits(0, 20, "uneven"), "cannot be stacked|differ in shape"),
        (Stream(), "train is a Stream without numbered samples"),
        ([1, 2], "a sample is a int, expected"),
        ([], "train has no samples"),
    ],
    ids=["own generator", "uneven", "iterable", "no pairs", "empty"],
)
def test_dataset_that_cannot_be_read_the_same_again_is_refused(part, fault):
    with pytest.raises(DataError, match=fault):
        sp500.from_torch(part, None, Digits(50, 60), config=settings())


def test_collate_pads():
    def pad(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        return torch.stack([F.pad(x, (0, 64 - len(x))) for x, _ in samples]), torch.tensor([y for _, y in samples])

    data = sp500.from_torch(Digits(0, 20, "uneven"), None, Digits(20, 30), config=settings(), collate=pad)
    assert data.row == (64,)
