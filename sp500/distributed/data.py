"""Ray Data: shards written by parallel tasks, and streamed to the workers of Ray Train.

Each rank has a dataset of its own shards, so that the manifest alone says how many windows it will see: Ray's own split
hands blocks to the first that asks, and ranks would end at different steps. A reading task checks the shard and takes a
quarter of a CPU, since workers that hold every CPU would starve it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
import ray.data
from ray.data import DataContext, RandomSeedConfig, TaskPoolStrategy
from ray.data._internal.execution.execution_callback import ExecutionCallback

from sp500.data.shards.reader import Chunk, Shard, ShardSet, chunk
from sp500.data.shards.writer import Source, write_shard
from sp500.distributed import capacity
from sp500.errors import DataError, SP500Error, attempt
from sp500.seeding import derive

if TYPE_CHECKING:  # tasks that read import this file, and would wait two seconds for torch
    from sp500.data.shards.stream import Chunks

# Tasks that read at once for a worker, and what each takes of a CPU. Four start later: the first epoch waited 4.6 s for
# them, and 2.9 s for two (docs/LOG.md).
READERS = 2
READER_CPUS = 0.25
PACE_SECONDS = 0.02
NAME, FAULT = "shard", "fault"


class Paced(ExecutionCallback):  # type: ignore[misc]
    """A rest for Ray Data's scheduler after each of its steps.

    It runs in the training process and spins while a full buffer waits to be taken: 13% of the samples per second.
    """

    def on_execution_step(self, executor: object) -> None:
        """Call the hook after each step."""
        del executor
        time.sleep(PACE_SECONDS)


def shard_writer(source: Source, uri: str, tasks: int) -> Callable[[Iterable[int]], list[Shard]]:
    """Return a function that writes the shards with these numbers by Ray Data, `tasks` at once, for `writer.write`."""
    _quiet()
    write, at_once = partial(_write, ray.put(source), uri), TaskPoolStrategy(size=tasks)

    def each(numbers: Iterable[int]) -> list[Shard]:
        items = [{"number": number} for number in numbers]
        try:
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map(write, compute=at_once).take_all()
        except ray.exceptions.RayError as error:
            raise SP500Error(f"writing shards to {uri} failed: {error}") from error
        return [row["shard"] for row in rows]

    return each


def build_dataset(shards: ShardSet, mine: list[Shard], *, shuffle: bool, seed: int, rank: int) -> ray.data.Dataset:
    """Return one rank's shards as a dataset of one block per shard, in a new order at every pass when shuffled."""
    _quiet()
    dataset = ray.data.from_items([{NAME: shard.name} for shard in mine], override_num_blocks=len(mine))
    if shuffle:
        # Without reseeding, every pass would have the same order.
        order = RandomSeedConfig(seed=derive(seed, "shards", rank) % 2**31, reseed_after_execution=True)
        dataset = dataset.randomize_block_order(seed=order)
    readers = TaskPoolStrategy(size=READERS)
    read = partial(_read, shards)
    dataset = dataset.map_batches(read, batch_size=1, batch_format="pyarrow", num_cpus=READER_CPUS, compute=readers)
    dataset.context.custom_execution_callback_classes.append(Paced)
    return dataset


def chunks(dataset: ray.data.DataIterator, shards: ShardSet, epochs: int) -> Chunks:
    """Yield what `build_dataset` yields in up to `epochs` passes, as the chunks for a Stream.

    A thread reads ahead, also into the next pass: a pass of Ray Data takes a quarter of a second to begin.
    """
    ahead: Queue[Chunk | Exception | None] = Queue(maxsize=1)

    def fill() -> None:
        """Put the chunks, or the error that the reader is to raise."""
        attempt(lambda: _put_passes(dataset, shards, epochs, ahead), ahead.put)

    thread = threading.Thread(target=fill, name="shards", daemon=True)

    def read(epoch: int) -> Iterator[Chunk]:
        del epoch
        if thread.ident is None:
            thread.start()
        while (item := ahead.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    return read


def _put_passes(dataset: ray.data.DataIterator, shards: ShardSet, epochs: int, ahead: Queue[Any]) -> None:
    """Put the chunks of each pass, and None after it."""
    reads = False
    for _ in range(epochs):
        # Whole blocks, which Stream shuffles: batches of Ray's local shuffle buffer may be short in the middle of a
        # pass, so that ranks would differ in their steps (https://github.com/ray-project/ray/issues/66085).
        for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
            if FAULT in table.column_names:
                raise DataError(table.column(FAULT)[0].as_py())
            name = table.column(NAME)[0].as_py()
            ahead.put(chunk(table, shards.named[name], shards))
            if not reads:  # the readers have their nodes, and the workers too
                capacity.withdraw()
                reads = True
        ahead.put(None)


def _write(source: ray.ObjectRef, uri: str, row: Mapping[str, int]) -> dict[str, Shard]:
    return {"shard": write_shard(ray.get(source), row["number"], uri)}


def _read(shards: ShardSet, batch: pa.Table) -> pa.Table:
    (name,) = batch.column(NAME).to_pylist()
    try:
        table = shards.table(shards.named[name])
    except DataError as error:  # as a value: Ray would wrap it, and try again
        return pa.table({FAULT: [str(error)]})
    return table.append_column(NAME, pa.array([name] * len(table)).dictionary_encode())


def _quiet() -> None:
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
