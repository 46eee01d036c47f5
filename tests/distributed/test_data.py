"""Shards through Ray Data: the same bytes, every window once, bad ones by name."""

from pathlib import Path

import pytest
import torch

from sp500.config import DataConfig, RunConfig, TrainConfig
from sp500.data import pipeline
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import ShardSet
from sp500.distributed import data, train
from sp500.errors import DataError, SP500Error
from sp500.runs.store import RunStore
from sp500.tasks import catalog

CONFIG = DataConfig(tickers=("AAPL", "KO", "GE"), start="2014-01-01", multiplier=6, window=5)


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    return pipeline.prepare(CONFIG, direction=False)


@pytest.fixture(scope="module")
def shards(prepared, tmp_path_factory) -> ShardSet:
    return writer.write(prepared.source(), str(tmp_path_factory.mktemp("set")))


def contents(uri: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(uri).iterdir()}


def seen(chunks, epoch: int) -> list[bytes]:
    return [
        chunk.rows[start : start + 5].tobytes() + target.tobytes()
        for chunk in chunks(epoch)
        for start, target in zip(chunk.starts, chunk.targets, strict=True)
    ]


def test_ray_tasks_write_the_same_bytes_as_one_process(ray_cluster, prepared, shards, tmp_path):
    uri = str(tmp_path / "by-ray")
    writer.write(prepared.source(), uri, data.shard_writer(prepared.source(), uri, 2))
    assert contents(uri) == contents(shards.uri)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_read_every_window_once_at_every_pass(ray_cluster, shards, world):
    local = stream.local_chunks(shards, list(shards.shards), shuffle=False, seed=0)
    reference = sorted(seen(local, 1))
    ranks = stream.assign_shards(shards.shards, world)
    readers = [
        data.chunks(data.build_dataset(shards, mine, shuffle=True, seed=0, rank=rank).iterator(), shards, 2)
        for rank, mine in enumerate(ranks)
    ]
    passes = [[window for read in readers for window in seen(read, epoch)] for epoch in (1, 2)]
    assert [sorted(windows) for windows in passes] == [reference, reference]
    assert passes[0] != passes[1]


def test_bad_shard_is_named(ray_cluster, shards, tmp_path):
    for name, content in contents(shards.uri).items():
        (tmp_path / name).write_bytes(content)
    copy = ShardSet.open(str(tmp_path))
    path = tmp_path / copy.shards[2].name
    path.write_bytes(path.read_bytes()[:-9] + b"not right")
    reading = data.build_dataset(copy, list(copy.shards), shuffle=False, seed=0, rank=0)
    with pytest.raises(DataError, match=path.name):
        seen(data.chunks(reading.iterator(), copy, 1), 1)


def test_bad_shard_ends_training_by_name_without_restarts(ray_cluster, prepared, shards, tmp_path):
    for name, content in contents(shards.uri).items():
        (tmp_path / name).write_bytes(content)
    copy = ShardSet.open(str(tmp_path))
    path = tmp_path / copy.shards[1].name
    path.write_bytes(b"x" * copy.shards[1].bytes)
    config = RunConfig(num_workers=1, data=CONFIG, train=TrainConfig(epochs=1))
    small = prepared.dataset("float32", multiplier=1)
    with RunStore(tmp_path).open("bad") as run, pytest.raises(SP500Error, match=path.name) as raised:
        train.fit_on_ray(catalog.task(config), small, config, run, copy)
    assert "restarts" not in str(raised.value)


def test_two_processes_over_shards_equal_torchs_own_mean_gradient(shards):
    # What DDP averages over two ranks is the gradient of the mean over the global batch, short parts included.
    ranks = stream.assign_shards(shards.shards, 2)
    streams = [
        stream.Stream(
            stream.local_chunks(shards, mine, shuffle=True, seed=0),
            shards,
            stream.count_windows(ranks),
            torch.device("cpu"),
            torch.float64,
            rank=rank,
        )
        for rank, mine in enumerate(ranks)
    ]
    weights = torch.linspace(-1, 1, 30, dtype=torch.float64)
    for step in zip(*(one.epoch(1, 700, shuffle=True, seed=0) for one in streams), strict=True):
        sums = [((batch.x.flatten(1) @ weights - batch.y) ** 2)[: batch.count].sum() for batch in step]
        weighted = sum(total * 2 / batch.total for total, batch in zip(sums, step, strict=True)) / 2
        errors = torch.cat([(batch.x.flatten(1) @ weights - batch.y)[: batch.count] for batch in step])
        assert float(weighted) == pytest.approx(float((errors**2).mean()), rel=1e-12)
