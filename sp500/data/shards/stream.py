"""Batches from shards: every training window once per epoch, in bounded memory.

Shuffling has two levels: the order of shards per epoch, and the windows within a buffer of a few shards. Each rank
reads its own shards, chosen by the manifest so that ranks hold about as many windows, and every rank takes the same
number of steps; parts that are short are weighted by their count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from sp500.data.batches import Batch
from sp500.data.shards.reader import Chunk, Layout, Shard, ShardSet
from sp500.seeding import numpy_generator, torch_generator

BUFFER_WINDOWS, BUFFER_BYTES = 100_000, 256 * 2**20
Chunks = Callable[[int], Iterable[Chunk]]
Part = tuple[Tensor, Tensor, Tensor]
"""A batch's x, y, and numbers of its windows."""


def assign_shards(shards: Iterable[Shard], world: int) -> list[list[Shard]]:
    """Return the shards of each rank: the largest first, each to the rank that has least."""
    ranks: list[list[Shard]] = [[] for _ in range(world)]
    windows = [0] * world
    for shard in sorted(shards, key=lambda shard: (-shard.windows, shard.name)):
        rank = windows.index(min(windows))
        ranks[rank].append(shard)
        windows[rank] += shard.windows
    return ranks


def epoch_order(shards: list[Shard], epoch: int, *, shuffle: bool, seed: int) -> list[Shard]:
    """Return the order in which an epoch reads shards."""
    if not shuffle:
        return shards
    return [shards[place] for place in numpy_generator(seed, "shards", epoch).permutation(len(shards))]


def local_chunks(shards: ShardSet, mine: list[Shard], *, shuffle: bool, seed: int) -> Chunks:
    """Read shards from their files, one ahead of the training, in a thread."""

    def read(epoch: int) -> Iterator[Chunk]:
        order = iter(epoch_order(mine, epoch, shuffle=shuffle, seed=seed))
        with ThreadPoolExecutor(1, thread_name_prefix="shards") as ahead:
            coming = [ahead.submit(shards.read, shard) for shard in [next(order, None)] if shard]
            while coming:
                ready = coming.pop().result()
                coming += [ahead.submit(shards.read, shard) for shard in [next(order, None)] if shard]
                yield ready

    return read


def buffer_windows(layout: Layout) -> int:
    """Return the number of windows that are shuffled together."""
    return max(min(BUFFER_WINDOWS, BUFFER_BYTES // layout.line_bytes), 1)


def count_windows(ranks: list[list[Shard]]) -> list[int]:
    """Return the number of windows of each rank."""
    return [sum(shard.windows for shard in mine) for mine in ranks]


class Stream:
    """Batches of one rank from the chunks of its shards.

    `windows` [rank]: how many windows each rank holds, from which every rank knows all ranks' counts at every step.
    """

    def __init__(
        self,
        chunks: Chunks,
        of: ShardSet,
        windows: list[int],
        device: torch.device,
        dtype: torch.dtype,
        *,
        rank: int = 0,
    ) -> None:
        self._chunks, self._of, self._windows = chunks, of, windows
        self._device, self._dtype, self._rank = device, dtype, rank

    def __len__(self) -> int:
        return sum(self._windows)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch, the same on every rank."""
        return math.ceil(max(self._windows) / self._part(batch_size))

    def epoch(self, epoch: int, batch_size: int, *, shuffle: bool, seed: int) -> Iterator[Batch]:
        """Yield every window of this rank once, in the same number of batches on every rank."""
        size = self._part(batch_size)
        generator = torch_generator(seed, "buffer", epoch, self._rank) if shuffle else None
        parts = self._gather(self._chunks(epoch), size, generator)
        # What a rank computes, with weight 0, when it has no more windows, so that gradients can still be added up.
        layout = self._of.layout
        x = self._move(np.zeros((1, layout.window, *layout.row), layout.dtype))
        y = self._move(np.zeros((1, *layout.target), layout.target_dtype))
        windows = torch.zeros(1, device=self._device, dtype=torch.int64)
        for step in range(self.steps(batch_size)):
            counts = [min(max(rank_windows - step * size, 0), size) for rank_windows in self._windows]
            count, total = counts[self._rank], sum(counts)
            x, y, windows = next(parts) if count else (x[:1], y[:1], windows[:1])
            yield Batch(x, y, windows, count, max(counts), total, total * y[0].numel())

    def _part(self, batch_size: int) -> int:
        return math.ceil(batch_size / len(self._windows))

    def _gather(self, chunks: Iterable[Chunk], size: int, generator: torch.Generator | None) -> Iterator[Part]:
        """Yield batches of `size` windows, the last one short; the rest of a buffer opens the next batch."""
        rest: Part | None = None
        for buffer in self._buffers(chunks):
            count, first = len(buffer.starts), 0
            order = torch.randperm(count, generator=generator) if generator is not None else torch.arange(count)
            if rest is not None:
                first = min(size - len(rest[1]), count)
                rest = _join(rest, buffer.take(order[:first]))
                if len(rest[1]) < size:
                    continue
                yield rest
                rest = None
            while count - first >= size:
                yield buffer.take(order[first : first + size])
                first += size
            if first < count:
                rest = buffer.take(order[first:])
        if rest is not None:
            yield rest

    def _buffers(self, chunks: Iterable[Chunk]) -> Iterator[_Buffer]:
        """Yield buffers of a few chunks at a time, on the device."""
        buffer, most = list[Chunk](), buffer_windows(self._of.layout)
        for chunk in chain(chunks, [None]):
            if chunk is not None:
                buffer.append(chunk)
            if buffer and (chunk is None or sum(len(part.starts) for part in buffer) >= most):
                offsets = np.cumsum([0, *(len(part.rows) for part in buffer[:-1])])
                starts = [part.starts + offset for part, offset in zip(buffer, offsets, strict=True)]
                numbers = [part.first + np.arange(len(part.starts)) for part in buffer]
                rows = self._move(np.concatenate([part.rows for part in buffer]))
                targets = self._move(np.concatenate([part.targets for part in buffer]))
                buffer = []
                views = rows.unfold(0, self._of.layout.window, 1).movedim(-1, 1)
                yield _Buffer(
                    views, torch.from_numpy(np.concatenate(starts)), targets, self._move(np.concatenate(numbers))
                )

    def _move(self, array: np.ndarray) -> Tensor:
        values = torch.from_numpy(array)
        return values.to(self._device, self._dtype) if values.is_floating_point() else values.to(self._device)


@dataclass(frozen=True)
class _Buffer:
    """Windows to draw from: views [row, window, ...] and each window's first row, target and number."""

    views: Tensor
    starts: Tensor
    targets: Tensor
    numbers: Tensor

    def take(self, chosen: Tensor) -> Part:
        """Return a part of the windows."""
        return self.views[self.starts[chosen]], self.targets[chosen], self.numbers[chosen]


def _join(first: Part, second: Part) -> Part:
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]), torch.cat([first[2], second[2]])
