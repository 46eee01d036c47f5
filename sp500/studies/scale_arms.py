"""Three ways to train on a dataset of any size, under the same memory budget.

    in_memory   every window copied out into arrays, as most scripts do; one process
    streaming   shards from disk, windows as views; one process, without Ray
    ray         the same shards through Ray Data to N workers of Ray Train, one per node

The two without Ray run in a child process that cannot take more memory than the budget. Ray's nodes are given the
budget as their memory and object store, and what they took is measured.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sp500.config import RunConfig
from sp500.data import pipeline
from sp500.data.copied import Copied
from sp500.data.shards import stream, writer
from sp500.data.shards.reader import ShardSet
from sp500.data.windows import Dataset, target_mask
from sp500.errors import ConfigError, DataError
from sp500.machine.memory import PeakMemory, limit_memory
from sp500.runs.record import RunRecord, process_start
from sp500.runs.results import DataCard, ShardFacts
from sp500.runs.store import Run
from sp500.studies.train import judge, run_record
from sp500.tasks import catalog
from sp500.training import checkpoint
from sp500.training.fitting import fit_model
from sp500.training.loop import FitResult
from sp500.training.step import DTYPES
from sp500.training.worker import SoloWorker, device

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay

EXPERIMENT = "scale"


def prepare(config: RunConfig) -> pipeline.Prepared | Copied:
    """Prepare the data that becomes `config.data.multiplier` times its training windows."""
    if config.train.refit:
        raise ConfigError("scale compares training times and trains once: remove train.refit")
    if config.train.checkpoint_steps:
        raise ConfigError("train.checkpoint_steps: shards come in another order after a restart; leave it at 0")
    if config.task_kind.from_prices and not config.data.npz_path:
        return catalog.price_task(config).read(config)
    config = catalog.resolve(config)
    once = config.model_copy(update={"data": config.data.model_copy(update={"multiplier": 1})})
    data = catalog.prepare(catalog.task(config), once)
    if target_mask(data.train.targets) is not None:
        raise DataError("scale does not accept masked targets (-100): shards do not store the count per window")
    return Copied(data, config.data)


def place(config: RunConfig, root: str, fingerprint: str) -> str:
    """Return the place of the set with that fingerprint: `root` if it is there, else a folder of that name in it.

    Without a root, sets are next to the runs, so that the next run with the same data finds them.
    """
    root = writer.absolute(root or str(config.io.save_dir / ".shards"))
    return root if writer.fingerprint_at(root) == fingerprint else f"{root}/{fingerprint}"


def in_memory(config: RunConfig, run: Run, memory_bytes: int) -> RunRecord:
    """Train in one process over materialised windows. Raises MemoryError with the bytes that they need."""
    ready = prepare(config)
    # From here on: libraries have reserved what they reserve, and nothing that grows with the dataset is there yet.
    limit_memory(memory_bytes)
    dataset = ready.materialise(config.train.dtype)
    return _alone(config, run, dataset, "in_memory", None)


def streaming(config: RunConfig, run: Run, memory_bytes: int, root: str = "", skip_bad: int = 0) -> RunRecord:
    """Train in one process over shards, which it writes if they are not there yet."""
    ready = prepare(config)
    limit_memory(memory_bytes)
    shards, dataset = store_shards(ready, config, root, skip_bad)
    ranks = stream.assign_shards(shards.shards, 1)
    chunks = stream.local_chunks(shards, ranks[0], shuffle=config.data.shuffle_train, seed=config.data.seed)
    on = device(config.train.device)
    batches = stream.Stream(chunks, shards, stream.count_windows(ranks), on, DTYPES[config.train.dtype])
    return _alone(config, run, dataset, "streaming", batches)


def on_ray(
    config: RunConfig, run: Run, ray: BackgroundRay, *, nodes: int, root: str = "", skip_bad: int = 0
) -> RunRecord:
    """Train by N workers over shards, on `ray` of so many simulated nodes, or on a cluster (0)."""
    from sp500.distributed import capacity, preflight, train

    started = datetime.now(UTC)
    ready = prepare(config)
    with ray.connect() as raylets:
        # Before tasks write shards, which may take minutes; the storage on all nodes, also those that had to come.
        preflight.worker_share(
            config.num_workers, gpu=preflight.use_gpu(config.train.device, config.num_workers), readers=True
        )
        if not nodes:  # those of one machine share its folders; each would start a process to say so
            preflight.check_shared_storage(run.path)
        run.write_cluster(capacity.resources(), nodes)
        with PeakMemory(interval_seconds=0.5, roots=raylets) if raylets else nullcontext() as peak:
            shards, dataset = store_shards(ready, config, root, skip_bad, tasks=config.num_workers)
            spread = nodes >= config.num_workers
            result = train.fit_on_ray(catalog.task(config), dataset, config, run, shards, spread=spread)
        have = capacity.resources()
    record = _judge(config, run, dataset, result, arm="ray", started=started, cluster=have)
    largest = peak.bytes if peak else record.peak_memory_bytes
    machine = record.machine.model_copy(update={"simulated_nodes": nodes})
    return record.model_copy(update={"peak_memory_bytes": largest, "machine": machine})


def store_shards(
    ready: pipeline.Prepared | Copied, config: RunConfig, root: str = "", skip_bad: int = 0, *, tasks: int = 0
) -> tuple[ShardSet, Dataset]:
    """Return the shards of `config`, written if missing, and the dataset whose training windows they are."""
    source = ready.source()
    shards, facts = write_set(source, place(config, root, source.fingerprint), skip_bad, tasks=tasks)
    small = ready.dataset(config.train.dtype, multiplier=1)
    windows = {**small.card["windows"], "train": shards.windows}
    return shards, replace(small, card={**small.card, "windows": windows, "shards": facts})


def write(config: RunConfig, uri: str) -> DataCard:
    """Write the set of `config` to `uri` and return its data card; with workers, as many tasks of Ray write at once."""
    ready = prepare(config)
    with _connect() if config.num_workers else nullcontext():
        shards, facts = write_set(ready.source(), writer.absolute(uri), tasks=config.num_workers)
    card = ready.dataset(config.train.dtype, multiplier=1).card
    if isinstance(ready, pipeline.Prepared):
        card["feature_summary"] = pipeline.summary(ready.table)
    return {**card, "windows": card["windows"] | {"train": shards.windows}, "shards": facts}


def _connect() -> AbstractContextManager[object]:
    from sp500.distributed import session

    return session.connect()


def write_set(source: writer.Source, uri: str, skip_bad: int = 0, *, tasks: int = 0) -> tuple[ShardSet, ShardFacts]:
    """Write the set to `uri`, here or by tasks on the connected cluster. Returns it with the facts for a record."""
    each = None
    if tasks:
        from sp500.distributed import data

        each = data.shard_writer(source, uri, tasks)
    started, reused = time.perf_counter(), writer.fingerprint_at(uri) == source.fingerprint
    shards = writer.write(source, uri, each, skip_bad=skip_bad)
    facts: ShardFacts = {
        "uri": uri,
        "fingerprint": shards.fingerprint,
        "files": len(shards.shards),
        "windows": shards.windows,
        "bytes": shards.bytes,
        "reused": reused,
        "writing_seconds": 0.0 if reused else time.perf_counter() - started,
        "dropped": list(shards.dropped),
    }
    return shards, facts


def _alone(config: RunConfig, run: Run, dataset: Dataset, arm: str, batches: stream.Stream | None) -> RunRecord:
    worker = SoloWorker(device(config.train.device), run.append_epoch)
    checkpoints = checkpoint.of_run(run.checkpoints, config, dataset)
    result = fit_model(catalog.task(config), dataset, config, worker, checkpoints, train=batches)
    return _judge(config, run, dataset, result, arm=arm, started=process_start())


def _judge(
    config: RunConfig,
    run: Run,
    dataset: Dataset,
    result: FitResult,
    *,
    arm: str,
    started: datetime,
    cluster: dict[str, float] | None = None,
) -> RunRecord:
    record = run_record(config, run, dataset, result, experiment=EXPERIMENT, arm=arm, started=started, cluster=cluster)
    return record.model_copy(update={"metrics": judge(catalog.task(config), dataset, result, config, run)})
