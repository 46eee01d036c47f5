"""Writes that a kill or a full disk leaves whole or undone. An error names the path and the free space."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from sp500.errors import DiskError

FULL = {errno.ENOSPC, errno.EDQUOT}
LEFTOVER_SECONDS = 24 * 3600
"""What is younger may still be written."""


def write_atomic(path: Path, text: str | bytes | Iterable[bytes], mode: int = 0o666) -> None:
    """Write a whole file or nothing: temporary file, fsync, rename, fsync of the folder.

    `mode`: permissions, less what the umask forbids. The temporary file has an unguessable name and is never opened
    through a link, so that another user of a shared folder can neither create it in advance nor write to it. Those that
    killed writers of this file left are removed.

    Raises DiskError.
    """
    # Names of files may be no UTF-8.
    data = text.encode(errors="backslashreplace") if isinstance(text, str) else text
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    replaced = path.exists()
    with explain_errors(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    if replaced:  # a folder of many files is not searched at each of them
        remove_leftovers(path.parent, f".{escape(path.name)}.{'[0-9a-f]' * 16}.tmp")


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove the files and folders of that pattern that killed processes left a day ago or earlier."""
    for rest in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - rest.lstat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(rest) if rest.is_dir() else rest.unlink()


@contextmanager
def make_staging_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder for unverified files next to its target; it is removed afterwards. Raises DiskError."""
    folder = parent / f"{name}-{secrets.token_hex(4)}"
    with explain_errors(folder):
        folder.mkdir(parents=True)
    remove_leftovers(parent, f"{name}-*")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_durably(path: Path, line: str) -> None:
    """Append one line and return when it is on the disk. A line torn by a kill is dropped, not continued.

    Raises DiskError, also for a link: another user of the folder may have made it.
    """
    with explain_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "ab+") as file:
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


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a DiskError about this path."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> DiskError:
    """Return the error with the path and, if the disk reports it, its free space."""
    message = f"{path}: cannot be written ({error.strerror or error}"
    folder = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    with suppress(OSError):
        message += f"; {shutil.disk_usage(folder).free / 2**20:.1f} MiB free"
    link = ": it is a link, which is not followed. Remove it" if error.errno == errno.ELOOP else ""
    advice = ": make room and run again" if error.errno in FULL else link
    named = DiskError(f"{message}){advice}")
    named.errno, named.strerror = error.errno, error.strerror
    return named
