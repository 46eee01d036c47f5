"""Versions of a checkpoint: folders whose manifest, written last, holds the sha256 of each file and of itself.

    checkpoints/epoch-00007/{model.safetensors, optimizer.safetensors, manifest.json}
    checkpoints/epoch-00007-step-00000350/...    inside epoch 8, after 350 steps in all
    checkpoints/{last,best} -> epoch-00007

A model that FSDP splits may have one file of each worker instead (`sp500.training.sharded`).

What is in the files is for `sp500.training.checkpoint`; that they are whole can be told without torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp500.machine.disk import file_digest, sync_folder

MANIFEST = "manifest.json"
NAME = re.compile(r"epoch-(\d{5,})(?:-step-(\d{8,}))?")
FILE = re.compile(r"[\w-][\w.-]*")
DAMAGE = (OSError, ValueError, KeyError, TypeError)
"""Errors of reading a damaged version."""
Version = tuple[int, int]
"""Epochs that have ended, and the step inside the next one; 0: none."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a version. `files`: sha256 by name; `progress`: plain data of the loop."""

    fingerprint: str
    progress: dict[str, Any]
    files: dict[str, str]

    def dump(self) -> str:
        """Return the text of its file, with a checksum."""
        plain = {"fingerprint": self.fingerprint, "progress": self.progress, "files": self.files}
        return json.dumps({**plain, "sha256": digest(_canonical(plain))}, indent=1)

    @classmethod
    def parse(cls, data: bytes, place: object) -> Manifest:
        """Parse what `dump` returns. Raises one of DAMAGE, naming the place, for anything else."""
        plain = json.loads(data)
        if not isinstance(plain, dict):
            raise ValueError(f"{place} is not a valid manifest")
        if plain.pop("sha256", None) != digest(_canonical(plain)):
            raise ValueError(f"{place} does not match its checksum")
        if not isinstance(plain["files"], dict) or not all(map(FILE.fullmatch, plain["files"])):
            raise ValueError(f"{place} does not name the files of a version")
        return cls(plain["fingerprint"], plain["progress"], plain["files"])

    @property
    def best(self) -> Version | None:
        """The best version as of this one."""
        return best_of(self.progress)


def read(folder: Path) -> Manifest:
    """Read the manifest of a version. Raises one of DAMAGE."""
    return Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)


def check(folder: Path) -> Manifest:
    """Return the manifest of a version whose files are intact. Raises as `read`, naming the damaged file."""
    manifest = read(folder)
    compare(folder, manifest.files)
    return manifest


def compare(folder: Path, files: dict[str, str]) -> None:
    """Raise ValueError, or OSError, for the first of these files that does not have its sha256."""
    for file, expected in files.items():
        if file_digest(folder / file) != expected:
            raise ValueError(f"{folder / file} does not match its checksum")


def of(folder: Path) -> list[Version]:
    """Return all versions in a folder of checkpoints, oldest first."""
    return sorted(parse(path.name) for path in folder.glob("epoch-*") if NAME.fullmatch(path.name))


def parse(name: str) -> Version:
    """Return the version of that name. Raises ValueError."""
    match = NAME.fullmatch(name)
    if not match:
        raise ValueError(f"{name} is not a version")
    return int(match[1]), int(match[2] or 0)


def name(version: Version) -> str:
    """Return the name of a version's folder."""
    epoch, step = version
    return f"epoch-{epoch:05d}" + (f"-step-{step:08d}" if step else "")


def best_of(progress: dict[str, Any]) -> Version | None:
    """Return the best version as of this progress; None inside the first epoch, where there may be none yet."""
    best = int(progress["best_epoch"])
    return (best, 0) if best or progress.get("best_loss") is not None else None


def link(path: Path, version: Version) -> None:
    """Make `path` (last or best) a link to a version next to it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    for rest in path.parent.glob(f".{path.name}.*.tmp"):  # of killed writers: there is one at a time
        rest.unlink(missing_ok=True)
    temporary.symlink_to(name(version))
    temporary.replace(path)
    sync_folder(path.parent)


def digest(data: bytes) -> str:
    """Return the sha256, in hex."""
    return hashlib.sha256(data).hexdigest()


def _canonical(plain: Mapping[str, object]) -> bytes:
    return json.dumps(plain, sort_keys=True).encode()
