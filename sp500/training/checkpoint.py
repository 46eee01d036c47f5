"""Checkpoints: written atomically, with checksums that show damage.

A version, as `sp500.runs.versions` describes it, is written to a temporary folder and renamed. The links are swapped
the same way, so a reader never sees a partial version. The newest version, the one before it and the best of each are
kept, or more. When the newest is damaged, training resumes from the one before and reaches the same numbers.

The state of a model that FSDP splits is gathered and written by rank 0 while that fits its memory; else each worker
writes its part (`sp500.training.sharded`). Any number of workers reads either form.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import CheckpointError, undo_on_error
from sp500.machine.disk import FULL, explain_errors, sync_folder, write_atomic
from sp500.machine.memory import total_bytes
from sp500.runs import versions
from sp500.runs.versions import Manifest, Version
from sp500.training import sharded
from sp500.training.sharded import Tensors
from sp500.training.worker import SoloWorker, Worker

log = logging.getLogger(__name__)

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
GATHERED_SHARE = 0.25
"""Of a host's memory: the largest state that rank 0 gathers. It holds it a second time while it writes."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError)
ALONE = SoloWorker(torch.device("cpu"))


@dataclass(frozen=True)
class Snapshot:
    """Training at some step. `progress` is plain data: epoch, best_epoch, step and the loop's own counters.

    The tensors are what one worker holds: with FSDP its part of each. `best`: the weights of the best epoch so far.
    """

    model: Tensors
    optimizer: Tensors
    progress: Mapping[str, object]
    best: Tensors = field(default_factory=dict)


@runtime_checkable
class Keeper(Protocol):
    """Keeps the state of a training, so that it goes on from there."""

    def save(self, snapshot: Snapshot, worker: Worker) -> None:
        """Keep a state, or ignore it; all workers call it."""
        ...

    def resume(self, worker: Worker, like: Snapshot | None = None) -> tuple[Snapshot, Tensors] | None:
        """Return the last state and the best weights up to it; None if there is none."""
        ...


class Opened(NamedTuple):
    """A version whose files are undamaged. `tensors` by file. None: they are read part by part."""

    folder: Path
    manifest: Manifest
    tensors: dict[str, Tensors] | None

    def take(self, file: str, like: Mapping[str, Tensor], worker: Worker) -> Tensors:
        """Return the worker's part of each tensor, placed as that of `like` is. All workers call it."""
        if self.tensors is None:
            return sharded.read(self.folder, file, like, alone=worker.world == 1)
        placed: Tensors = {}
        for name, value in self.tensors[file].items():
            held = sharded.find_like(like, name)
            placed[name] = value if held is None else worker.distribute_tensor(value, held)
        return placed


class Checkpoints:
    """The checkpoints of one run. `fingerprint` keeps another configuration's weights out.

    `keep`: how many versions in addition to the best; `best`: two. `form`: how the state of a split model is written.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        keep: Literal["best", "all"] | int = "best",
        form: Literal["auto", "whole", "sharded"] = "auto",
    ) -> None:
        self.folder = folder
        self._fingerprint, self._keep, self._form = fingerprint, keep, form

    def save(self, snapshot: Snapshot, worker: Worker = ALONE) -> None:
        """Make `snapshot` the last version, and the best one if its progress says so; all workers call it.

        Raises CheckpointError on all workers when one cannot write: the others would wait for it for ever.
        """
        version = _version(snapshot.progress)
        target = self.folder / versions.name(version)
        if worker.rank == 0:
            self._clear()
        pid = int(_total(os.getpid() if worker.rank == 0 else 0, worker))  # all wait until it is cleared
        temporary = target.with_name(f".{target.name}.{pid}.tmp")
        failed: OSError | None = None
        try:
            write = sharded.write if self._in_parts(snapshot, worker) else _write_whole
            files = write(temporary, {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}, worker)
            if worker.rank == 0:
                self._publish(temporary, target, Manifest(self._fingerprint, dict(snapshot.progress), files))
                self._prune(version)
        except OSError as error:
            failed = error
        if not _total(failed is not None, worker):
            return
        if worker.rank == 0:
            self._clear()
        if failed is None:
            raise CheckpointError("rank 0 cannot write its checkpoint")
        free = shutil.disk_usage(next(place for place in target.parents if place.exists())).free
        room = "make room and " if failed.errno in FULL else ""
        raise CheckpointError(
            f"cannot write checkpoint {target}: {failed.strerror} ({free / 2**20:.0f} MiB free); earlier "
            f"checkpoints are intact: {room}run again with --resume"
        ) from failed

    def save_files(self, write: Callable[[Path], None], progress: Mapping[str, object]) -> None:
        """Make the files that `write` puts into a folder the last version. Raises SP500Error, and leaves none then."""
        target = self.folder / versions.name(_version(progress))
        self._clear()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        with explain_errors(target), undo_on_error(self._clear):
            temporary.mkdir(parents=True)
            write(temporary)
            files = {path.name: versions.digest(path.read_bytes()) for path in temporary.iterdir()}
            self._publish(temporary, target, Manifest(self._fingerprint, dict(progress), files))

    def _in_parts(self, snapshot: Snapshot, worker: Worker) -> bool:
        if not worker.splits or self._form != "auto":
            return worker.splits and self._form == "sharded"
        tensors = (*snapshot.model.values(), *snapshot.optimizer.values())
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # numel: of the whole tensor
        return _total(size > GATHERED_SHARE * total_bytes(), worker) > 0

    def _publish(self, written: Path, target: Path, manifest: Manifest) -> None:
        """Publish what was written as the last version, its manifest last."""
        write_atomic(written / versions.MANIFEST, manifest.dump())
        shutil.rmtree(target, ignore_errors=True)
        written.rename(target)
        sync_folder(self.folder)
        if manifest.best:
            versions.link(self.folder / "best", manifest.best)
        versions.link(self.folder / "last", versions.parse(target.name))

    def resume(self, worker: Worker = ALONE, like: Snapshot | None = None) -> tuple[Snapshot, Tensors] | None:
        """Return the newest undamaged snapshot and the best weights up to it; None if there is none.

        Tensors are as this worker holds those of `like`, else whole; all workers call it. Each damaged version is named
        in a warning. Raises CheckpointError for another configuration's checkpoint, and if workers see different
        ones.
        """
        newest_first = versions.of(self.folder)[::-1]
        # Compared before anything is read together.
        if _total(any(others != newest_first for others in worker.gather(newest_first)), worker):
            raise CheckpointError("workers see different checkpoints: the folder of runs is not on storage they share")
        held = like or Snapshot({}, {}, {})
        for version in newest_first:
            last = best = None
            try:
                last = self._open(version, worker)
                number = last.manifest.best
                best = last if number in (None, version) else self._open(number, worker, (MODEL,))
            except DAMAGE as error:
                log.warning("checkpoint %s is damaged and not used: %s", self.folder / versions.name(version), error)
            if _total(best is None, worker) or not last or not best:
                continue
            model, progress = last.take(MODEL, held.model, worker), last.manifest.progress
            snapshot = Snapshot(model, last.take(OPTIMIZER, held.optimizer, worker), progress)
            if last.manifest.best is None:
                return snapshot, {}
            return snapshot, model if best is last else best.take(MODEL, held.model, worker)
        return None

    def best(self) -> Tensors:
        """Return the weights of the best epoch, whole. Raises CheckpointError when they are damaged."""
        try:
            return self._open(versions.parse((self.folder / "best").readlink().name), ALONE).take(MODEL, {}, ALONE)
        except DAMAGE as error:
            raise CheckpointError(f"{self.folder / 'best'} cannot be used: {error}; run again with --resume") from error

    def _open(self, version: Version, worker: Worker, files: tuple[str, ...] = (MODEL, OPTIMIZER)) -> Opened:
        """Open the version with the tensors of `files`. Each worker checks files of a sharded one. Raises DAMAGE."""
        folder = self.folder / versions.name(version)
        manifest = versions.read(folder)
        if manifest.fingerprint != self._fingerprint:
            raise CheckpointError(
                f"{folder} belongs to a run with other settings or data ({manifest.fingerprint}, not "
                f"{self._fingerprint}); choose another --name"
            )
        if MODEL not in manifest.files:
            mine = sorted(manifest.files)[worker.rank :: worker.world]
            versions.compare(folder, {file: manifest.files[file] for file in mine})
            return Opened(folder, manifest, None)
        tensors = {}
        for name, expected in manifest.files.items():
            data = (folder / name).read_bytes()
            if versions.digest(data) != expected:
                raise ValueError(f"{folder / name} does not match its checksum")
            if name in files:
                tensors[name] = load(data)
        return Opened(folder, manifest, tensors)

    def _clear(self) -> None:
        """Remove what killed writers left. The run's lock lets one process write at a time."""
        for rest in self.folder.glob(".epoch-*.tmp"):
            shutil.rmtree(rest, ignore_errors=True)

    def _prune(self, newest: Version) -> None:
        if self._keep == "all":
            return
        count = 2 if self._keep == "best" else self._keep
        # Versions after the newest were skipped as damaged.
        keep = [version for version in versions.of(self.folder) if version <= newest][-count:]
        for version in tuple(keep):
            with suppress(*DAMAGE):  # the damaged version itself is kept, so that a user can look at it
                keep.append(versions.read(self.folder / versions.name(version)).best or version)
        for version in versions.of(self.folder):
            if version not in keep:
                shutil.rmtree(self.folder / versions.name(version), ignore_errors=True)


def of_run(folder: Path, config: RunConfig, dataset: Dataset) -> Checkpoints:
    """Return the checkpoints of a run. A run with other settings or other data cannot resume from them."""
    train, fingerprint = config.train, f"{config.fingerprint}-{dataset.sha256[:16]}"
    return Checkpoints(folder, fingerprint, train.keep, train.checkpoint)


def read_weights(folder: Path) -> bytes:
    """Read a version's weights as one safetensors file, also if workers wrote parts. Raises OSError."""
    parts = any(folder.glob(sharded.FILES))
    return pack(sharded.read(folder, MODEL, {}, alone=True)) if parts else (folder / MODEL).read_bytes()


def pack(tensors: Tensors) -> bytes:
    """Return tensors as one safetensors file."""
    data: bytes = save(sharded.separate(tensors))
    return data


def _write_whole(folder: Path, parts: dict[str, Tensors], worker: Worker) -> dict[str, str]:
    """Write what all ranks gather, tensor by tensor, on rank 0. Returns sha256 by file."""
    whole = {file: {name: _gather(value, worker) for name, value in part.items()} for file, part in parts.items()}
    if worker.rank:
        return {}
    folder.mkdir(parents=True)
    files = {file: pack(part) for file, part in whole.items()}
    for file, data in files.items():
        write_atomic(folder / file, data)
    return {file: versions.digest(data) for file, data in files.items()}


def _gather(value: Tensor, worker: Worker) -> Tensor:
    """Return the whole tensor on rank 0, on the CPU. An empty one on other ranks."""
    whole = worker.full_tensor(value.detach())
    return whole.cpu() if worker.rank == 0 else whole.new_empty(0)


def _total(value: float, worker: Worker) -> float:
    return float(worker.total(torch.tensor(float(value), dtype=torch.float64, device=worker.device)))


def _version(progress: Mapping[str, object]) -> Version:
    epoch, step = progress["epoch"], progress["step"] if progress.get("partial") else 0
    assert isinstance(epoch, int)
    assert isinstance(step, int)
    return epoch, step
