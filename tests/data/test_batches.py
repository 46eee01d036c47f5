"""Batches: over all ranks, each window exactly once per epoch, in one order whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sp500.data.batches import LARGE_ROW, Batch, Batches
from sp500.data.windows import Windows

CPU = torch.device("cpu")
COUNT, LENGTH = 23, 4


def numbered(features: int = 3) -> Windows:
    """Overlapping windows of two series; the target of window n is n."""
    rows = np.random.default_rng(0).standard_normal((32, features)).astype("float32")
    starts = np.array([*range(12), *range(18, 29)])
    return Windows(rows, starts, np.arange(COUNT, dtype="float32"), LENGTH)


def naive(windows: Windows, number: int) -> np.ndarray:
    start = windows.starts[number]
    features = range(windows.rows.shape[1])
    return np.array([[windows.rows[start + day, feature] for feature in features] for day in range(windows.length)])


def ranks(world: int) -> list[Batches]:
    return [Batches(numbered(), CPU, rank=rank, world=world) for rank in range(world)]


def steps(
    world: int, batch_size: int, epoch: int = 1, *, shuffle: bool = True, seed: int = 0
) -> Iterator[tuple[Batch, ...]]:
    return zip(*(rank.epoch(epoch, batch_size, shuffle=shuffle, seed=seed) for rank in ranks(world)), strict=True)


def counted(step: tuple[Batch, ...]) -> list[int]:
    """Numbers of the windows of one global batch, rank after rank."""
    return [int(number) for part in step for number in part.y[: part.count]]


WORLDS = pytest.mark.parametrize("world", [1, 2, 3])
SIZES = pytest.mark.parametrize("batch_size", [1, 2, 5, 7, 22, 23, 100])


@WORLDS
@SIZES
@pytest.mark.parametrize("epoch", [1, 2])
def test_every_window_comes_exactly_once_per_epoch(world, batch_size, epoch):
    seen = [number for step in steps(world, batch_size, epoch) for number in counted(step)]
    assert sorted(seen) == list(range(COUNT))


@WORLDS
@SIZES
def test_order_is_the_same_for_any_number_of_ranks(world, batch_size):
    assert list(map(counted, steps(world, batch_size))) == list(map(counted, steps(1, batch_size)))


@WORLDS
@SIZES
def test_contents_equal_a_loop_that_copies_them(world, batch_size):
    windows = numbered()
    for step in steps(world, batch_size):
        for part in step:
            expected = np.stack([naive(windows, int(number)) for number in part.y])
            np.testing.assert_array_equal(part.x.numpy(), expected)


@pytest.mark.parametrize("features", [LARGE_ROW - 1, LARGE_ROW, 2 * LARGE_ROW])
def test_rows_of_any_size_are_gathered_alike(features):
    windows = numbered(features)
    for batch in Batches(windows, CPU, rank=1, world=2).epoch(1, 7, shuffle=True, seed=0):
        np.testing.assert_array_equal(batch.x, np.stack([naive(windows, int(number)) for number in batch.y]))


@WORLDS
@SIZES
def test_every_rank_takes_every_step_and_knows_the_total(world, batch_size):
    found = list(steps(world, batch_size))
    assert len(found) == ranks(world)[0].steps(batch_size) == -(-COUNT // batch_size)
    for step in found:
        assert {part.total for part in step} == {sum(part.count for part in step)}
        assert all(len(part.x) == len(part.y) > 0 for part in step)


@WORLDS
@SIZES
def test_evaluation_sees_every_window_once_and_in_order(world, batch_size):
    evaluated = zip(*(rank.in_order(batch_size) for rank in ranks(world)), strict=True)
    assert [number for step in evaluated for number in counted(step)] == list(range(COUNT))


def order(epoch: int, *, shuffle: bool = True, seed: int = 0) -> list[int]:
    return [number for step in steps(1, 5, epoch, shuffle=shuffle, seed=seed) for number in counted(step)]


def test_order_is_new_in_every_epoch_and_for_every_seed():
    orders = [order(1), order(2), order(3), order(1, seed=1), order(2, seed=1)]
    assert len({tuple(one) for one in orders}) == 5


def test_order_does_not_depend_on_epochs_drawn_before():
    batches = ranks(1)[0]
    for epoch in (1, 2):
        list(batches.epoch(epoch, 5, shuffle=True, seed=0))
    third = [int(number) for batch in batches.epoch(3, 5, shuffle=True, seed=0) for number in batch.y]
    assert third == order(3)


def test_order_does_not_touch_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    order(1)
    assert torch.rand(1) == expected


def test_unshuffled_order_is_as_the_windows_lie():
    assert order(1, shuffle=False) == order(2, shuffle=False) == list(range(COUNT))


def test_read_only_arrays_are_taken_without_a_copy():
    windows = numbered()
    for array in (windows.rows, windows.starts, windows.targets):
        array.flags.writeable = False
    assert len(list(Batches(windows, CPU).in_order(5))) == 5


@WORLDS
def test_batch_knows_the_numbers_of_its_windows(world):
    for step in steps(world, 5):
        for part in step:
            np.testing.assert_array_equal(part.windows, part.y)
