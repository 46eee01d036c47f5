"""Parity: N processes of torch's process group end where one process does, in every family and for every kind of data,
with dropout and moved images, from memory and from shards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data.copied import Copied
from sp500.data.images.settings import ImagesConfig
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import ShardSet
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset
from sp500.tasks import catalog
from sp500.training.loop import fit
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
KINDS = ("mlp", "lstm", "transformer", "cnn", "gpt")
WINDOWS = 460  # the last batch has 60
Datasets = dict[str, Dataset]
Shards = dict[str, ShardSet]
Outputs = dict[str, np.ndarray]


def settings(kind: str) -> RunConfig:
    # A batch of 100 windows, which three workers cannot share evenly.
    train = TrainConfig(epochs=3, batch_size=100, lr=0.01, dtype="float64")
    model = ModelConfig(kind=kind, hidden=8, dropout=0.4)
    if kind == "cnn":
        return RunConfig(task="images", images=ImagesConfig(shift=1), model=model, train=train)
    if kind == "gpt":
        text = TextConfig(max_bytes=20_000, context=16)
        return RunConfig(task="language", text=text, model=model, train=train)
    data = DataConfig(start="2019-01-01", window=5, valid_from_train=0.0)
    return RunConfig(data=data, model=model, train=train)


def outputs(datasets: Datasets, worker: Worker, shards: Shards | None = None, *, whole: bool = False) -> Outputs:
    found = {}
    for kind, dataset in datasets.items():
        config, task = settings(kind), catalog.task(settings(kind))
        train = streamed(shards[kind], worker) if shards else None
        if whole:
            # One step for each pass: ranks hold other windows than a part of a smaller batch.
            batch = {"batch_size": 100 * len(dataset.train), "epochs": 3}
            config = config.model_copy(update={"train": config.train.model_copy(update=batch)})
        found[kind] = fit(task, dataset, config, worker, train=train).outputs["test"]
    return found


def streamed(shards: ShardSet, worker: Worker) -> stream.Stream:
    ranks = stream.assign_shards(shards.shards, worker.world)
    chunks = stream.local_chunks(shards, ranks[worker.rank], shuffle=True, seed=0)
    return stream.Stream(chunks, shards, stream.count_windows(ranks), CPU, torch.float64, rank=worker.rank)


def train_as_rank(rank: int, world: int, folder: Path, datasets: Datasets, copied: Datasets, shards: Shards) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    worker = GroupWorker(rank, world, CPU)
    found = {"memory": outputs(datasets, worker), "shards": outputs(copied, worker, shards, whole=True)}
    if rank == 0:
        for origin, arrays in found.items():
            np.savez(folder / f"{origin}.npz", **arrays)
    dist.destroy_process_group()


def first_windows(dataset: Dataset, count: int) -> Dataset:
    train = replace(dataset.train, starts=dataset.train.starts[:count], targets=dataset.train.targets[:count])
    return replace(dataset, train=train)


@pytest.fixture(scope="module")
def datasets() -> Datasets:
    configs = {kind: settings(kind) for kind in KINDS}
    return {kind: first_windows(catalog.task(config).prepare(config), WINDOWS) for kind, config in configs.items()}


@pytest.fixture(scope="module")
def copied(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Datasets, Shards]:
    """Images and text with two copies, in memory and as shards."""
    config = DataConfig(multiplier=3)
    ready = {kind: Copied(datasets[kind], config) for kind in ("cnn", "gpt")}
    folder = tmp_path_factory.mktemp("shards")
    shards = {kind: writer.write(one.source(), str(folder / kind)) for kind, one in ready.items()}
    return {kind: one.materialise("float64") for kind, one in ready.items()}, shards


@pytest.fixture(scope="module")
def solo(datasets: Datasets, copied: tuple[Datasets, Shards]) -> dict[str, Outputs]:
    worker = SoloWorker(CPU)
    return {"memory": outputs(datasets, worker), "shards": outputs(copied[0], worker, whole=True)}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_with_dropout_over_memory_and_shards_equal_one_in_memory(datasets, copied, solo, tmp_path, world):
    run_group(world, train_as_rank, world, tmp_path, datasets, *copied)
    for origin, expected in solo.items():
        with np.load(tmp_path / f"{origin}.npz") as found:
            assert found.keys() == expected.keys()
            for kind in expected:
                assert np.ptp(expected[kind]) > 1e-3
                np.testing.assert_allclose(
                    found[kind], expected[kind], rtol=0, atol=1e-9, err_msg=f"{kind} from {origin}"
                )
