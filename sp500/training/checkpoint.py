"""Checkpoints that are whole or not there, and that know when they are damaged.

    checkpoints/epoch-00007/{model.safetensors, optimizer.safetensors, manifest.json}
    checkpoints/epoch-00007-step-00000350/...    inside epoch 8, after 350 steps in all
    checkpoints/{last,best} -> epoch-00007

A version is written beside its place and renamed; the links are swapped the same way, so a reader never sees half of
one. The manifest holds the sha256 of each file and of itself. The newest version, the one before it and the best of
each are kept, or more: when the newest is damaged, training goes on from the one before, to the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
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

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
VERSION = re.compile(r"epoch-(\d{5,})(?:-step-(\d{8,}))?")
Version = tuple[int, int]
"""Epochs that have ended, and the step inside the next one; 0: none."""
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
        version, best = _version(snapshot.progress), _best(snapshot.progress)
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / _name(version)
        temporary = self.folder / f".{target.name}.{os.getpid()}.tmp"
        try:
            _write(temporary, snapshot, self._fingerprint)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            sync_folder(self.folder)
            if best:
                _link(self.folder / "best", best)
            _link(self.folder / "last", version)
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
        for version in self._versions()[::-1]:
            try:
                snapshot = self._read(version)
                best = _best(snapshot.progress)
                if best is None:
                    return snapshot, {}
                return snapshot, snapshot.model if best == version else self._read(best).model
            except DAMAGE as error:
                log.warning("checkpoint %s is damaged and not used: %s", self.folder / _name(version), error)
        return None

    def best(self) -> Tensors:
        """Weights of the best epoch. Raises CheckpointError when they are damaged."""
        try:
            return self._read(_parse((self.folder / "best").readlink().name)).model
        except DAMAGE as error:
            raise CheckpointError(f"{self.folder / 'best'} cannot be used: {error}; run again with --resume") from error

    def _versions(self) -> list[Version]:
        return sorted(_parse(path.name) for path in self.folder.glob("epoch-*") if VERSION.fullmatch(path.name))

    def _read(self, version: Version) -> Snapshot:
        folder = self.folder / _name(version)
        manifest = json.loads((folder / "manifest.json").read_text())
        if not isinstance(manifest, dict):
            raise ValueError(f"{folder / 'manifest.json'} is not a valid manifest")
        if manifest.pop("sha256") != _digest(_canonical(manifest)):
            raise ValueError(f"{folder / 'manifest.json'} does not match its checksum")
        if manifest["fingerprint"] != self._fingerprint:
            raise CheckpointError(
                f"{folder} belongs to a run with other settings or data ({manifest['fingerprint']}, not "
                f"{self._fingerprint}); choose another --name"
            )
        parts = {}
        for name, expected in manifest["files"].items():
            data = (folder / name).read_bytes()
            if _digest(data) != expected:
                raise ValueError(f"{folder / name} does not match its checksum")
            parts[name] = load(data)
        return Snapshot(parts["model.safetensors"], parts["optimizer.safetensors"], manifest["progress"])

    def _prune(self, newest: Version) -> None:
        for rest in self.folder.glob(".epoch-*.tmp"):  # of killed writers: the run's lock lets one write at a time
            shutil.rmtree(rest, ignore_errors=True)
        if self._keep == "all":
            return
        count = 2 if self._keep == "best" else self._keep
        # Those after the newest were passed over as damaged.
        kept = [version for version in self._versions() if version <= newest][-count:]
        for version in tuple(kept):
            with suppress(*DAMAGE):  # it is kept itself, so that what happened can be seen
                manifest = json.loads((self.folder / _name(version) / "manifest.json").read_text())
                kept.append(_best(manifest["progress"]) or version)
        for version in self._versions():
            if version not in kept:
                shutil.rmtree(self.folder / _name(version), ignore_errors=True)


def of_run(folder: Path, config: RunConfig, dataset: Dataset) -> Checkpoints:
    """Checkpoints that a run with other settings or other data does not go on from."""
    return Checkpoints(folder, f"{config.fingerprint}-{dataset.sha256[:16]}", config.train.keep)


def _write(folder: Path, snapshot: Snapshot, fingerprint: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # a killed writer's rest; in a container every start has the same pid
    folder.mkdir()
    files = {"model.safetensors": save(snapshot.model), "optimizer.safetensors": save(snapshot.optimizer)}
    for name, data in files.items():
        write_atomic(folder / name, data)
    manifest = {
        "fingerprint": fingerprint,
        "progress": snapshot.progress,
        "files": {name: _digest(data) for name, data in files.items()},
    }
    write_atomic(folder / "manifest.json", json.dumps({**manifest, "sha256": _digest(_canonical(manifest))}, indent=1))


def _link(link: Path, version: Version) -> None:
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(_name(version))
    temporary.replace(link)
    sync_folder(link.parent)


def _best(progress: dict[str, Any]) -> Version | None:
    """The best version as of this progress; None inside the first epoch, where there may be none yet."""
    best = int(progress["best_epoch"])
    return (best, 0) if best or progress.get("best_loss") is not None else None


def _version(progress: dict[str, Any]) -> Version:
    return progress["epoch"], progress["step"] if progress.get("partial") else 0


def _name(version: Version) -> str:
    epoch, step = version
    return f"epoch-{epoch:05d}" + (f"-step-{step:08d}" if step else "")


def _parse(name: str) -> Version:
    found = VERSION.fullmatch(name)
    if not found:
        raise ValueError(f"{name} is not a version")
    return int(found[1]), int(found[2] or 0)


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
