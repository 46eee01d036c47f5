"""Batches for one rank of many, gathered from window views in one process, without Ray.

The global batch is the same whatever the number of ranks: batch b of an epoch is a fixed slice of that epoch's order,
and rank r takes the r-th part of it. Every rank takes every step; a rank whose part is empty computes one window
with weight 0, so that gradients can still be added up.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from sp500.data.windows import Windows, target_mask
from sp500.seeding import torch_generator

DEVICE_SHARE = 0.25
"""Of a GPU's memory, for the rows of one split."""
LARGE_ROW = 32
"""Numbers of a row from which whole rows are copied: 3 to 6 times as fast as a view's elements, and slower below."""


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch.

    x [batch, window, ...]; y [batch] or [batch, window]; windows [batch], their numbers in the set, the same whatever
    the number of ranks. `count` of its windows count (0 or all), `largest` windows at the rank that has most; `total`
    windows and `targets` targets that count over all ranks. `global_windows`: those of all ranks, if this one has them.
    """

    x: Shaped[Tensor, "batch window *row"]
    y: Tensor
    windows: Int64[Tensor, " batch"]
    count: int
    largest: int
    total: int
    targets: int
    global_windows: Tensor | None = None


def parts(batch: Batch, most: int) -> list[Batch]:
    """Return a batch in micro-batches of at most `most` windows, as many on every rank; 0: in one."""
    if not most or batch.largest <= most:
        return [batch]
    micro_batches = []
    for first in range(0, batch.largest, most):
        count = min(max(batch.count - first, 0), most)
        # A rank that has no more computes its first window with weight 0.
        chosen = slice(first, first + count) if count else slice(1)
        x, y, windows = batch.x[chosen], batch.y[chosen], batch.windows[chosen]
        micro_batches.append(replace(batch, x=x, y=y, windows=windows, count=count))
    return micro_batches


@runtime_checkable
class TrainingBatches(Protocol):
    """One rank's batches of an epoch; every rank gives the same number of them."""

    def epoch(self, epoch: int, batch_size: int, *, shuffle: bool, seed: int) -> Iterator[Batch]:
        """Yield every window of all ranks together once, `batch_size` of them per batch over all ranks."""
        ...

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        ...


@runtime_checkable
class Fetching(Protocol):
    """Batches of a rank that has the windows of all ranks."""

    def fetch(self, numbers: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return x and y of windows by their numbers, of any rank."""
        ...


class Batches:
    """Batches of one split on one device, for one rank.

    Rows are on the device, where a batch is gathered without the host. Those that would take more than DEVICE_SHARE of
    a GPU's memory stay on the host, and batches are copied ahead.
    """

    def __init__(self, windows: Windows, device: torch.device, *, rank: int = 0, world: int = 1) -> None:
        self._rank, self._world = rank, world
        self._target, device = device, device if _fits(windows, device) else torch.device("cpu")
        rows = _tensor(windows.rows).to(device)
        # A view [row, window, ...]: unfold appends the window's axis, the models read it as the second.
        self._views = rows.unfold(0, windows.length, 1).movedim(-1, 1)
        self._rows, self._offsets = rows, torch.arange(windows.length)
        self._large_rows = rows.numel() >= LARGE_ROW * len(rows)
        self._starts = _tensor(windows.starts)
        self._targets = _tensor(windows.targets).to(device)
        self._target_counts = _count_targets(windows.targets)
        self._targets_each = math.prod(windows.targets.shape[1:])
        self._device = device

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def pixels(self) -> int:
        """Numbers of a window whose rows are images; 0 for others."""
        return self._views[0].numel() if self._views.ndim > 3 else 0

    @property
    def targets_each(self) -> int:
        """Targets of a window, also those that do not count."""
        return self._targets_each

    @property
    def targets(self) -> int:
        """Targets of all windows that count."""
        return self._targets.numel() if self._target_counts is None else int(self._target_counts.sum())

    def epoch(self, epoch: int, batch_size: int, *, shuffle: bool, seed: int) -> Iterator[Batch]:
        """Yield every window once, in an order that depends only on seed and epoch."""
        yield from self._batches(order_of(len(self), epoch, shuffle=shuffle, seed=seed), batch_size)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Yield every window once, in the order of the dataset: for evaluation."""
        yield from self._batches(torch.arange(len(self)), batch_size)

    def _batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        batches = (self._part(order[first : first + size]) for first in range(0, len(order), size))
        return batches if self._target == self._device else _copy_ahead(batches, self._target)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch, the same on every rank."""
        return math.ceil(len(self) / batch_size)

    def _part(self, chosen: Tensor) -> Batch:
        mine, count, size = rank_part(chosen, self._rank, self._world)
        x = self._gather(self._starts[mine])
        numbers = mine.to(self._device)
        y = self._targets[numbers]
        total = chosen.shape[0]  # len() of a tensor is Python, and takes four times as long
        targets = total * self._targets_each if self._target_counts is None else int(self._target_counts[chosen].sum())
        return Batch(x, y, numbers, count, size, total, targets, chosen)

    def fetch(self, numbers: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Return x and y of windows by their numbers, of any rank. They are the same in each epoch."""
        del epoch
        x, y = self._gather(self._starts[numbers]), self._targets[numbers.to(self._device)]
        return x.to(self._target), y.to(self._target)

    def _gather(self, starts: Tensor) -> Tensor:
        """Return the windows [window, row, ...] that begin at these rows."""
        if not self._large_rows:
            return self._views[starts.to(self._device)]
        numbers = (starts[:, None] + self._offsets).flatten().to(self._device)
        rows: Tensor = self._rows.index_select(0, numbers).unflatten(0, (len(starts), -1))
        return rows


def order_of(count: int, epoch: int, *, shuffle: bool, seed: int) -> Tensor:
    """Return the order of windows in an epoch."""
    return torch.randperm(count, generator=torch_generator(seed, "order", epoch)) if shuffle else torch.arange(count)


def rank_part(chosen: Tensor, rank: int, world: int) -> tuple[Tensor, int, int]:
    """Return a rank's windows of a global batch, how many of them count, and how many the first rank has.

    Never none: a rank that skipped its step would leave the others waiting in the backward pass.
    """
    total = chosen.shape[0]
    if world == 1:
        return chosen, total, total
    size = math.ceil(total / world)
    mine = chosen[rank * size : (rank + 1) * size]
    return (mine, len(mine), size) if len(mine) else (chosen[:1], 0, size)


def _fits(windows: Windows, device: torch.device) -> bool:
    """Return whether rows and targets fit on the device."""
    if device.type != "cuda":
        return True
    _, total = torch.cuda.mem_get_info(device)
    return windows.rows.nbytes + windows.targets.nbytes <= DEVICE_SHARE * total


def _copy_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches of the host on the device: a thread gathers two ahead and copies them on a stream of their own.

    The thread matters more than the stream: gathering takes the host as long as launching a small model's step does.
    """
    stream = torch.cuda.Stream(device)

    def bring() -> tuple[Batch, torch.cuda.Event] | None:
        """Return the next batch and the event after its copy; None after the last one."""
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            x, y, windows = (
                part.pin_memory().to(device, non_blocking=True) for part in (batch.x, batch.y, batch.windows)
            )
            return replace(batch, x=x, y=y, windows=windows), stream.record_event()

    # Each thread has a current device of its own: on the first one it would open an unused context.
    here = torch.cuda.current_device() if device.index is None else device.index
    with ThreadPoolExecutor(1, "sp500-copy", initializer=torch.cuda.set_device, initargs=(here,)) as thread:
        coming = deque(thread.submit(bring) for _ in range(2))
        while copied := coming.popleft().result():
            coming.append(thread.submit(bring))
            yield _hand_over(*copied, device)


def _hand_over(batch: Batch, copied: torch.cuda.Event, device: torch.device) -> Batch:
    """Return the batch for the computing stream, which waits for its copy and keeps its memory while it needs it."""
    computing = torch.cuda.current_stream(device)
    computing.wait_event(copied)
    for part in (batch.x, batch.y, batch.windows):
        # Else the allocator gives this memory back to the copying stream while the step still reads it.
        part.record_stream(computing)
    return batch


def _count_targets(targets: np.ndarray) -> Tensor | None:
    """Return the number of unmasked targets of each window [window]; None if no target is masked."""
    mask = target_mask(targets)
    return None if mask is None else torch.from_numpy((~mask).reshape(len(targets), -1).sum(axis=1))


def _tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over the same memory. Torch warns of the read-only arrays in Ray's object store; we only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
