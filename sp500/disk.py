"""Writes that a kill or a full disk leaves whole or undone."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, text: str | bytes, mode: int = 0o666) -> None:
    """Write a whole file or nothing: temporary file, fsync, rename, fsync of the folder.

    `mode`: what others may do with it, less what the umask forbids.
    """
    data = text.encode() if isinstance(text, str) else text
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append_durably(path: Path, line: str) -> None:
    """Append one line and return when it is on the disk. A line torn by a kill is dropped, not continued."""
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
