"""Ray Data: shards written by parallel tasks, and streamed to the workers of Ray Train.

Each rank has a dataset of its own shards, so that the manifest alone says how many windows it will see: Ray's own split
hands blocks to whoever asks first, and ranks would end at different steps. A reading task checks the shard and takes a
quarter of a CPU, since workers that hold every CPU would starve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import DataContext, RandomSeedConfig

from sp500.data.sharding import Source, write_shard
from sp500.data.shards import Chunk, Shard, ShardSet, chunk
from sp500.data.stream import Chunks
from sp500.errors import DataError, SP500Error
from sp500.seeding import derive

READER_CPUS = 0.25
NUMBER = "shard"


def writing(source: Source, uri: str) -> Callable[[Iterable[int]], list[Shard]]:
    """Writes the shards of the given numbers by Ray Data tasks, for `sharding.write`."""
    _quiet()
    write = partial(_write, ray.put(source), uri)

    def each(numbers: Iterable[int]) -> list[Shard]:
        items = [{"number": number} for number in numbers]
        try:
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map(write).take_all()
        except ray.exceptions.RayError as error:
            raise SP500Error(f"writing shards to {uri} failed: {error}") from error
        return [row["shard"] for row in rows]

    return each


def reading(shards: ShardSet, mine: list[Shard], *, shuffle: bool, seed: int, rank: int) -> ray.data.Dataset:
    """One rank's shards as a dataset of one block per shard, in a new order at every pass when shuffled."""
    _quiet()
    found = ray.data.from_items([{NUMBER: shard.name} for shard in mine], override_num_blocks=len(mine))
    if shuffle:
        order = RandomSeedConfig(seed=derive(seed, "shards", rank) % 2**31, reseed_after_execution=True)
        found = found.randomize_block_order(seed=order)
    return found.map_batches(partial(_read, shards), batch_size=1, batch_format="pyarrow", num_cpus=READER_CPUS)


def chunks(dataset: ray.data.DataIterator, shards: ShardSet) -> Chunks:
    """What `reading` yields, as the chunks that a Stream takes."""

    def read(epoch: int) -> Iterator[Chunk]:
        try:
            for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
                name = table.column(NUMBER)[0].as_py()
                yield chunk(table, shards.named[name], shards)
        except ray.exceptions.RayError as error:
            raise DataError(_cause(error)) from error

    return read


def _write(source: ray.ObjectRef, uri: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"shard": write_shard(ray.get(source), row["number"], uri)}


def _read(shards: ShardSet, batch: pa.Table) -> pa.Table:
    (name,) = batch.column(NUMBER).to_pylist()
    table = shards.table(shards.named[name])
    return table.append_column(NUMBER, pa.array([name] * len(table)).dictionary_encode())


def _cause(error: BaseException) -> str:
    """The innermost message: Ray wraps what a task raised several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _quiet() -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
