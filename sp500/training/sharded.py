"""Checkpoints in which each worker writes the part that it holds: torch's distributed checkpoint.

    checkpoints/epoch-00007/{shard-00001-model-00001-of-00001.safetensors, shard-00002-..., manifest.json}

No process holds the whole state. The parts are safetensors, since the usual form of torch's distributed checkpoints is
a pickle, which may run code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from sp500.machine.disk import file_digest
from sp500.training.worker import Worker

Tensors = dict[str, Tensor]
FILES = "shard-*.safetensors"


def write(folder: Path, parts: dict[str, Tensors], worker: Worker) -> dict[str, str]:
    """Write this worker's part of tensors, by group and name; all workers call it. On rank 0: sha256 by file.

    Raises OSError on all workers if one cannot write.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    named = {f"{group}/{name}": value for group, part in parts.items() for name, value in separate(part).items()}
    try:
        with _quiet():
            writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
            # Rank 0 writes what all hold, as in a whole checkpoint: inside an epoch their running means may differ.
            save(named, storage_writer=writer, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause if isinstance(cause, OSError) else OSError(0, str(cause)) from error
    mine = _hashes(folder, worker.rank)
    hashes = worker.gather(mine)
    for each in (mine, *hashes):
        if isinstance(each, OSError):
            raise each
    return {file: digest for each in hashes for file, digest in each.items()}


def separate(tensors: Tensors) -> Tensors:
    """Return tensors in the order of their numbers, each with memory of its own, as safetensors requires.

    Channels-last and transposed weights have another order; tied weights and parts of one tensor share memory.
    """
    storages, own = set[int](), {}
    for name, tensor in tensors.items():
        value = tensor.contiguous()
        held = value.to_local() if hasattr(value, "to_local") else value  # of a tensor that FSDP splits
        storage = held.untyped_storage().data_ptr()
        own[name] = value.clone() if storage in storages else value
        storages.add(storage)
    return own


def read(folder: Path, group: str, like: Mapping[str, Tensor], *, alone: bool) -> Tensors:
    """Read the tensors of a group: of those in `like` what this worker holds there, the others whole.

    All workers call it, or this process `alone`.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors: Tensors = {}
    for key, kind in reader.read_metadata().state_dict_metadata.items():
        own, _, name = key.partition("/")
        if own == group and isinstance(kind, TensorStorageMetadata):
            held = find_like(like, name)
            tensors[key] = (
                torch.empty(kind.size, dtype=kind.properties.dtype)
                if held is None or held.shape != kind.size
                else torch.empty_like(held)
            )
    with _quiet():
        load(tensors, storage_reader=reader, no_dist=alone)
    return {key.partition("/")[2]: value for key, value in tensors.items()}


def find_like(like: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor of a name, or of its beginning: an optimiser's `3.exp_avg` is held as parameter `3` is."""
    held = like.get(name)
    return like.get(name.rpartition(".")[0]) if held is None else held


def _hashes(folder: Path, rank: int) -> dict[str, str] | OSError:
    """Return sha256 of the files that a rank wrote, or the error of reading them: the others wait for an answer."""
    try:
        return {path.name: file_digest(path) for path in folder.glob(f"shard-{rank + 1:05d}-*")}
    except OSError as error:
        return error


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore torch's warnings about a save or a load in a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
