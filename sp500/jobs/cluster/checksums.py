"""SHA-256 of every file of a folder, here and as `sha256sum` tells it over there."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from sp500.errors import DataError

Checksums = dict[str, str]
"""Path inside the folder (with `/`) -> SHA-256 in hexadecimal."""


def of_folder(folder: Path) -> Checksums:
    """Of all files below `folder`. Raises DataError for what is neither a file nor a folder, such as a link."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: only files and folders can be transferred; put the file itself there")
        if path.is_file():
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def remote_argv(folder: str) -> list[str]:
    """The command whose output `remote` reads. Zeros between lines: a name may hold anything else."""
    return ["find", folder, "-type", "f", "-exec", "sha256sum", "--zero", "{}", "+"]


def remote(output: str, folder: str) -> Checksums:
    """Checksums below `folder` from that command's output: `<64 digits>  <path>` and a zero, for each file."""
    lines = (line for line in output.split("\0") if line)
    return {str(PurePosixPath(line[66:]).relative_to(folder)): line[:64] for line in lines}


def difference(wanted: Checksums, found: Checksums) -> str:
    """How `found` differs from `wanted`, in words that name a few files; empty where it does not."""
    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    changed = sorted(path for path in wanted.keys() & found.keys() if wanted[path] != found[path])
    told = [("missing", missing), ("unexpected", extra), ("different", changed)]
    return "; ".join(f"{len(paths)} {word}: {_few(paths)}" for word, paths in told if paths)


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
