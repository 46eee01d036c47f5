"""Checkpoints that are whole or not there, and that know when they are damaged.

A version, as `sp500.runs.versions` describes it, is written beside its place and renamed; the links are swapped the
same way, so a reader never sees half of one. The newest version, the one before it and the best of each are kept, or
more: when the newest is damaged, training goes on from the one before, to the same numbers.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import CheckpointError
from sp500.machine.disk import sync_folder, write_atomic
from sp500.runs import versions
from sp500.runs.versions import Manifest, Version

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError)


@dataclass(frozen=True)
class Snapshot:
    """Training at some step. `progress` is plain data: epoch, best_epoch, step and the loop's own counters."""

    model: Tensors
    optimizer: Tensors
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run. `fingerprint` keeps another configuration's weights out.

    `keep`: how many versions besides the best; `best`: two.
    """

    def __init__(self, folder: Path, fingerprint: str, keep: Literal["best", "all"] | int = "best") -> None:
        self.folder = folder
        self._fingerprint = fingerprint
        self._keep = keep

    def save(self, snapshot: Snapshot) -> None:
        """Make `snapshot` the last version, and the best one where its progress says so."""
        version, best = _version(snapshot.progress), versions.best_of(snapshot.progress)
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / versions.name(version)
        temporary = self.folder / f".{target.name}.{os.getpid()}.tmp"
        try:
            _write(temporary, snapshot, self._fingerprint)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            sync_folder(self.folder)
            if best:
                versions.link(self.folder / "best", best)
            versions.link(self.folder / "last", version)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            free = shutil.disk_usage(self.folder).free
            raise CheckpointError(
                f"cannot write checkpoint {target}: {error.strerror} ({free / 2**20:.0f} MiB free); earlier "
                "checkpoints are intact: make room and run again with --resume"
            ) from error
        self._prune(version)

    def resume(self) -> tuple[Snapshot, Tensors] | None:
        """The newest undamaged snapshot and the best weights up to it; None where there is none.

        Each damaged version is named in a warning. Raises CheckpointError for another configuration's checkpoint.
        """
        for version in versions.of(self.folder)[::-1]:
            try:
                snapshot = self._read(version)
                best = versions.best_of(snapshot.progress)
                if best is None:
                    return snapshot, {}
                return snapshot, snapshot.model if best == version else self._read(best).model
            except DAMAGE as error:
                log.warning("checkpoint %s is damaged and not used: %s", self.folder / versions.name(version), error)
        return None

    def best(self) -> Tensors:
        """Weights of the best epoch. Raises CheckpointError when they are damaged."""
        try:
            return self._read(versions.parse((self.folder / "best").readlink().name)).model
        except DAMAGE as error:
            raise CheckpointError(f"{self.folder / 'best'} cannot be used: {error}; run again with --resume") from error

    def _read(self, version: Version) -> Snapshot:
        folder = self.folder / versions.name(version)
        manifest = versions.read(folder)
        if manifest.fingerprint != self._fingerprint:
            raise CheckpointError(
                f"{folder} belongs to a run with other settings or data ({manifest.fingerprint}, not "
                f"{self._fingerprint}); choose another --name"
            )
        parts = {}
        for name, expected in manifest.files.items():
            data = (folder / name).read_bytes()
            if versions.digest(data) != expected:
                raise ValueError(f"{folder / name} does not match its checksum")
            parts[name] = load(data)
        return Snapshot(parts["model.safetensors"], parts["optimizer.safetensors"], manifest.progress)

    def _prune(self, newest: Version) -> None:
        for rest in self.folder.glob(".epoch-*.tmp"):  # of killed writers: the run's lock lets one write at a time
            shutil.rmtree(rest, ignore_errors=True)
        if self._keep == "all":
            return
        count = 2 if self._keep == "best" else self._keep
        # Those after the newest were passed over as damaged.
        kept = [version for version in versions.of(self.folder) if version <= newest][-count:]
        for version in tuple(kept):
            with suppress(*DAMAGE):  # it is kept itself, so that what happened can be seen
                kept.append(versions.read(self.folder / versions.name(version)).best or version)
        for version in versions.of(self.folder):
            if version not in kept:
                shutil.rmtree(self.folder / versions.name(version), ignore_errors=True)


def of_run(folder: Path, config: RunConfig, dataset: Dataset) -> Checkpoints:
    """Checkpoints that a run with other settings or other data does not go on from."""
    return Checkpoints(folder, f"{config.fingerprint}-{dataset.sha256[:16]}", config.train.keep)


def _unshared(tensors: Tensors) -> Tensors:
    """Tied weights, each with memory of its own, as safetensors wants them."""
    seen, found = set[int](), {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found


def _write(folder: Path, snapshot: Snapshot, fingerprint: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # a killed writer's rest; in a container every start has the same pid
    folder.mkdir()
    files = {"model.safetensors": save(_unshared(snapshot.model)), "optimizer.safetensors": save(snapshot.optimizer)}
    for name, data in files.items():
        write_atomic(folder / name, data)
    hashes = {name: versions.digest(data) for name, data in files.items()}
    write_atomic(folder / versions.MANIFEST, Manifest(fingerprint, snapshot.progress, hashes).dump())


def _version(progress: dict[str, Any]) -> Version:
    return progress["epoch"], progress["step"] if progress.get("partial") else 0
