"""Checkpoints of which each worker writes its part, in real groups of processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group
from safetensors.torch import load
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import CheckpointError
from sp500.runs import versions
from sp500.tasks import catalog
from sp500.training import checkpoint
from sp500.training.checkpoint import Checkpoints, read_weights
from sp500.training.loop import FitResult, fit
from sp500.training.step import Stepper
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
STEPS, BETWEEN, CUT = 9, 2, 7
"""Steps of the training, those between two checkpoints, and those after which it is interrupted."""
CONFIG = RunConfig.model_validate(
    {
        "task": "language",
        "text": {"max_bytes": 6_000, "context": 8},
        "model": {"kind": "gpt", "hidden": 16, "layers": 2, "heads": 2, "dropout": 0.1},
        "train": {"batch_size": 16, "max_steps": STEPS, "dtype": "float64", "parallel": "fsdp", "clip": 0.5}
        | {"checkpoint_steps": BETWEEN, "checkpoint": "sharded"},
    }
)
FIRST_RANK = "shard-00001-model-00001-of-00001.safetensors"


class Interrupted(Exception):
    """Whatever ends a run from outside."""


def data() -> Dataset:
    return catalog.task(CONFIG).prepare(CONFIG)


def saved(folder: Path, form: str = "sharded") -> Checkpoints:
    return Checkpoints(folder, "parts", form=form)


def train(worker: Worker, folder: Path, form: str = "sharded") -> FitResult:
    return fit(catalog.task(CONFIG), data(), CONFIG, worker, saved(folder, form))


def start(rank: int, world: int, group: Path, do: Callable[..., None], *arguments: object) -> None:
    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=world)
    do(GroupWorker(rank, world, CPU), *arguments)
    dist.destroy_process_group()


def run_ranks(world: int, folder: Path, do: Callable[..., None], *arguments: object) -> None:
    run_group(world, start, world, folder / f"group-{do.__name__}-{world}", do, *arguments)


def train_until_cut(worker: GroupWorker, folder: Path) -> None:
    take = Stepper.take

    def interrupted(self: Stepper, batch: object, step: int) -> Tensor:
        if step == CUT:
            raise Interrupted
        return take(self, batch, step)

    Stepper.take = interrupted
    with pytest.raises(Interrupted):
        train(worker, folder)


def train_to_the_end(worker: GroupWorker, folder: Path) -> None:
    train(worker, folder)


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    folder = tmp_path_factory.mktemp("solo")
    train(SoloWorker(CPU), folder)
    return last_weights(folder)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of three ranks, interrupted inside an epoch."""
    folder = tmp_path_factory.mktemp("cut")
    run_ranks(3, folder, train_until_cut, folder / "checkpoints")
    return folder / "checkpoints"


def last_weights(folder: Path) -> dict[str, Tensor]:
    found = saved(folder).resume()
    assert found is not None
    return found[0].model


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-9, err_msg=name)


def copy(cut: Path, folder: Path) -> Path:
    return Path(shutil.copytree(cut, folder / "checkpoints", symlinks=True))


def test_each_rank_writes_a_part_and_none_holds_the_whole(cut):
    newest = cut / versions.name(versions.of(cut)[-1])
    manifest = versions.check(newest)
    assert manifest.progress["step"] == CUT // BETWEEN * BETWEEN
    assert sorted(manifest.files) == sorted(file.name for file in newest.glob("shard-*"))
    assert len(manifest.files) == 3
    parts = [sum(tensor.numel() for tensor in load((newest / file).read_bytes()).values()) for file in manifest.files]
    assert max(parts) < 0.6 * sum(parts)


@pytest.mark.parametrize("world", [1, 2])
def test_another_number_of_workers_goes_on_to_the_weights_of_one_process(cut, tmp_path, solo, world):
    folder = copy(cut, tmp_path)
    if world == 1:
        train(SoloWorker(CPU), folder)
    else:
        run_ranks(world, tmp_path, train_to_the_end, folder)
    assert_equal(last_weights(folder), solo)


def test_workers_go_on_from_the_version_before_a_damaged_one(cut, tmp_path, solo):
    folder = copy(cut, tmp_path)
    before, newest = versions.of(folder)[-2:]
    damaged = folder / versions.name(newest) / FIRST_RANK
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    found = saved(folder).resume()
    assert found is not None
    assert found[0].progress["step"] == before[1]
    run_ranks(2, tmp_path, train_to_the_end, folder)
    assert_equal(last_weights(folder), solo)


def test_weights_for_an_answer_are_put_together(cut):
    assert_equal(load(read_weights(cut / versions.name(versions.of(cut)[-1]))), last_weights(cut))


def fill_the_disk(worker: GroupWorker, disk: Path) -> None:
    if worker.rank == 0:
        (disk / "filler").write_bytes(bytes(900_000))
    dist.barrier()
    with pytest.raises(CheckpointError, match="No space left on device"):
        train(worker, disk / "checkpoints")


def test_all_workers_stop_where_the_disk_is_full(make_disk, tmp_path):
    disk = make_disk("size=1m")
    run_ranks(2, tmp_path, fill_the_disk, disk)
    assert not list((disk / "checkpoints").glob(".*"))


def train_in_both_sizes(worker: GroupWorker, folder: Path) -> None:
    train(worker, folder / "small", "auto")
    checkpoint.GATHERED_SHARE = 0.0
    train(worker, folder / "large", "auto")


def test_a_state_that_takes_much_of_the_memory_is_not_gathered(tmp_path):
    run_ranks(2, tmp_path, train_in_both_sizes, tmp_path)
    small, large = ({file.name for file in (tmp_path / size / "last").iterdir()} for size in ("small", "large"))
    assert "model.safetensors" in small
    assert FIRST_RANK in large
    assert "model.safetensors" not in large
