"""Streaming: every window exactly once per epoch, whatever the number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sp500.config import DataConfig
from sp500.data import pipeline
from sp500.data.prices import Prices
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import ShardSet


@pytest.fixture(scope="module")
def shards(bundled_stocks: Prices, tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    config = DataConfig(tickers=("AAPL", "KO", "GE"), start="2018-01-01", multiplier=4, window=5)
    return writer.write(pipeline.prepare(config, direction=False).source(), str(tmp_path_factory.mktemp("set")))


def streams(shards: ShardSet, world: int, *, shuffle: bool = True) -> list[stream.Stream]:
    ranks = stream.assign_shards(shards.shards, world)
    held = [sum(shard.windows for shard in mine) for mine in ranks]
    return [
        stream.Stream(
            stream.local_chunks(shards, mine, shuffle=shuffle, seed=1),
            shards,
            held,
            torch.device("cpu"),
            torch.float32,
            rank=rank,
        )
        for rank, mine in enumerate(ranks)
    ]


@pytest.fixture(scope="module")
def reference(shards: ShardSet) -> set[bytes]:
    found = []
    for shard in shards.shards:
        chunk = shards.read(shard)
        found += [
            chunk.rows[start : start + 5].tobytes() + target.tobytes()
            for start, target in zip(chunk.starts, chunk.targets, strict=True)
        ]
    assert len(set(found)) == len(found) == shards.windows
    return set(found)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 40])
@pytest.mark.parametrize("batch_size", [100, 1000])
@pytest.mark.parametrize("buffer", [500, 100_000])
def test_every_window_is_seen_once_and_ranks_are_disjoint(
    shards,
    reference,
    world,
    batch_size,
    buffer,
    shuffle,
    monkeypatch,
):
    monkeypatch.setattr(stream, "BUFFER_WINDOWS", buffer)
    ranks = streams(shards, world, shuffle=shuffle)
    taken = [list(one.epoch(1, batch_size, shuffle=shuffle, seed=0)) for one in ranks]
    assert {len(batches) for batches in taken} == {ranks[0].steps(batch_size)}
    seen = [
        x.numpy().tobytes() + y.numpy().tobytes()
        for batches in taken
        for batch in batches
        for x, y in zip(batch.x[: batch.count].contiguous(), batch.y[: batch.count], strict=True)
    ]
    assert len(seen) == shards.windows
    assert set(seen) == reference
    for step in zip(*taken, strict=True):
        assert {batch.total for batch in step} == {sum(batch.count for batch in step)}
        assert all(len(batch.x) == max(batch.count, 1) for batch in step)


def test_sum_of_targets_is_the_reference_s(shards):
    expected = sum(float(shards.read(shard).targets.astype(np.float64).sum()) for shard in shards.shards)
    found = sum(
        float(batch.y[: batch.count].double().sum())
        for one in streams(shards, 3)
        for batch in one.epoch(4, 256, shuffle=True, seed=0)
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_order_changes_with_epoch_and_seed_and_is_repeatable(shards):
    def first(epoch: int, seed: int) -> bytes:
        batch = next(iter(streams(shards, 1)[0].epoch(epoch, 64, shuffle=True, seed=seed)))
        return batch.x.numpy().tobytes()

    assert first(1, 0) == first(1, 0)
    assert len({first(1, 0), first(2, 0), first(1, 1)}) == 3


def test_ranks_hold_about_as_many_windows(shards):
    held = [sum(shard.windows for shard in mine) for mine in stream.assign_shards(shards.shards, 3)]
    assert max(held) - min(held) <= max(shard.windows for shard in shards.shards)


def test_bad_shard_stops_the_epoch_by_name(shards, tmp_path):
    target = tmp_path / "set"
    target.mkdir()
    for path in Path(shards.uri).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    copy = ShardSet.open(str(target))
    path = target / shards.shards[3].name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match=path.name):
        list(streams(copy, 1)[0].epoch(1, 64, shuffle=True, seed=0))


@pytest.mark.parametrize("world", [1, 3])
def test_windows_have_the_numbers_that_they_have_in_memory(bundled_stocks, shards, world):
    config = DataConfig(tickers=("AAPL", "KO", "GE"), start="2018-01-01", multiplier=4, window=5)
    whole = pipeline.prepare(config, direction=False).dataset("float32").train
    for one in streams(shards, world):
        for batch in one.epoch(1, 256, shuffle=True, seed=0):
            numbers = batch.windows[: batch.count].numpy()
            # Shards are rounded to float32 before targets are scaled, arrays after.
            np.testing.assert_allclose(batch.y[: batch.count], whole.targets[numbers], rtol=1e-5)
            last_days = whole.rows[whole.starts[numbers] + 4]
            np.testing.assert_allclose(batch.x[: batch.count, -1], last_days, rtol=1e-5, atol=1e-6)
