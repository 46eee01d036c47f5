"""Refuse a job for a cluster whose command names a file that is on this machine alone.

The cluster finds out after its nodes were paid for. What counts is what is here: a path that does not exist on this
machine is taken to be one of the cluster's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError
from sp500.jobs import working_dir
from sp500.jobs.manifests.manifest import Cluster, Document, items, section
from sp500.jobs.spec import JobSpec

# What the Dockerfile copies into the folder that commands start in.
IMAGE_FOLDER, IN_IMAGE = "/app", ("experiments", "sp500", "pyproject.toml")
CLAIMS = ("/data", "/runs")
# Folders that every image has, with contents of its own.
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/sbin", "/sys", "/usr", IMAGE_FOLDER)
# Flags that take a path, as they end: whatever else follows a flag is one if it has a slash or a suffix.
INPUTS = ("source", "path", "shards", "tokenizer")
# Flags of folders that a command writes to.
OUTPUTS = ("runs-dir", "runs_dir", "save-dir", "save_dir", "--out")


def check_image_has(spec: JobSpec, cluster: Document) -> None:
    """Raise ConfigError for a file that pods of this cluster, made for the job, do not have."""
    mounts = [
        str(mount.get("mountPath"))
        for group in Cluster("spec", section(cluster, "spec"), {}).groups
        for mount in items(group.ray.body.get("volumeMounts"))
    ]
    # A zip of the code, or the folder that the user uploads, is not known here.
    uploads = spec.working_dir is not None or spec.mode == "InteractiveMode"

    def has(path: Path) -> bool:
        """Whether the pods have it, as far as that is known."""
        if path.is_absolute():
            return _is_below(path, (*mounts, *SYSTEM))
        return ".." not in path.parts[:1] and (uploads or path.parts[:1] == () or path.parts[0] in IN_IMAGE)

    for word, path in _find_local(spec):
        if not has(path):
            raise ConfigError(
                f"{word}: this is on this machine, and the job's pods have {' and '.join(IN_IMAGE[:2])} of the image "
                f"and the claims at {' and '.join(CLAIMS)}. Upload its folder (scripts/upload-data FOLDER) and name it "
                f"/data/FOLDER/{path.name}, or copy it into the image and name it {IMAGE_FOLDER}/{path.name}. A file "
                "of settings goes with the job: --settings FILE in place of --config FILE"
            )


def check_upload_has(spec: JobSpec, folder: Path) -> None:
    """Raise ConfigError for a file that is not uploaded with `folder` to a Ray cluster."""
    uploaded = working_dir.files(folder) if spec.working_dir is None else {}

    def has(path: Path) -> bool:
        """Whether the job's processes have it, as far as that is known."""
        if path.is_absolute():
            return _is_below(path, (*CLAIMS, *SYSTEM))
        if ".." in path.parts[:1]:
            return False
        return spec.working_dir is not None or any(Path(name).is_relative_to(path) for name in uploaded)

    for word, path in _find_local(spec):
        if not has(path):
            raise ConfigError(
                f"{word}: this is on this machine, and Ray uploads the current folder without what .gitignore and "
                ".rayignore name. Copy it into this folder and give a relative path, or put it on the cluster's "
                f"storage and name it there (/data/...{path.name})"
            )


def _find_local(spec: JobSpec) -> Iterator[tuple[str, Path]]:
    """Words of the command and of its settings that name a file or folder of this machine, and its path."""
    words = pairwise(("", *spec.argv))
    given = [word.partition("=")[::2] if word.startswith("-") else (before, word) for before, word in words]
    for flag, value in [*given, *_settings("", spec.settings)]:
        is_path = "/" in value or Path(value).suffix or flag.endswith(INPUTS)
        if not value or flag.endswith(OUTPUTS) or "://" in value or not is_path:
            continue
        # FILE.py:NAME is an object in a file.
        if path := next(filter(None, map(_existing, (value, value.rpartition(":")[0]))), None):
            yield value, path


def _existing(text: str) -> Path | None:
    """The path that a word means, without `.` and inner `..`; None where nothing is there."""
    if not text:
        return None
    path = Path(os.path.normpath(Path(text).expanduser()))
    try:
        return path if path.exists() else None
    except (OSError, ValueError):  # too long, of a folder of somebody else, with a NUL
        return None


def _settings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each text in settings, with the key that it is under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _settings(str(name), part)
    elif isinstance(value, list):
        for part in value:
            yield from _settings(key, part)


def _is_below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
