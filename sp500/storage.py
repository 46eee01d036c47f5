"""A folder on any filesystem that pyarrow knows: a local path, s3://, gs://.

Credentials, the region and the endpoint of another store than AWS's come from the environment: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, or the identity of the machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.fs

from sp500.errors import DataError, DiskError
from sp500.machine.disk import FULL, explain_errors, write_atomic

CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Entry:
    """A file of a folder: its bytes, and when it was written."""

    size: int
    modified: datetime


class Folder:
    """A folder on any filesystem that pyarrow knows: a path, s3://, gs://. Raises DataError for another scheme.

    `timeout_seconds`: an S3 server that sends nothing for so long has failed. Default: pyarrow's own patience, which
    lasted 99 s when it was measured, and holds the end of the process as long.
    """

    def __init__(self, uri: str, timeout_seconds: float | None = None) -> None:
        self.uri = uri
        if "://" not in uri:
            self._files, self._path = pyarrow.fs.LocalFileSystem(), uri
            return
        try:
            if timeout_seconds and uri.startswith("s3://"):
                self._files, self._path = _impatient(uri, timeout_seconds)
            else:
                self._files, self._path = pyarrow.fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{uri}: cannot be opened ({error}); use a path, s3:// or gs://") from error

    def read(self, name: str) -> bytes:
        """Return a whole file. Raises OSError."""
        with self._files.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file or nothing, by a rename, so that writers of the same set may meet.

        Raises DiskError for a full disk, DataError for a place that cannot be written.
        """
        if isinstance(self._files, pyarrow.fs.LocalFileSystem):
            path = Path(self._path, name)
            try:
                with explain_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(path, data)
            except DiskError as error:
                if error.errno in FULL:
                    raise
                raise DataError(str(error)) from error
            return
        temporary = f"{self._path}/.{name}.{secrets.token_hex(8)}.tmp"
        try:
            self._files.create_dir(self._path, recursive=True)
            with self._files.open_output_stream(temporary) as file:
                file.write(data)
            self._files.move(temporary, f"{self._path}/{name}")
        except OSError as error:
            raise DataError(f"{self.uri}/{name}: cannot be written ({error})") from error

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if there is none."""
        info = self._files.get_file_info(f"{self._path}/{name}")
        return int(info.size) if info.is_file else None

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file in the folder."""
        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True)
        return {info.base_name: info.size for info in self._files.get_file_info(selector) if info.is_file}

    def entries(self) -> dict[str, Entry]:
        """Return all files at any depth, by their names below the folder. Raises OSError."""
        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True, recursive=True)
        files = [info for info in self._files.get_file_info(selector) if info.is_file]
        return {info.path.removeprefix(f"{self._path}/"): Entry(info.size, info.mtime) for info in files}

    def upload(self, source: io.BufferedIOBase, name: str) -> str:
        """Copy an open file in chunks, and return the sha256 of what was copied. Raises OSError.

        An object store shows a file when all of it is there; on a disk it gets its name then.
        """
        target, local = f"{self._path}/{name}", isinstance(self._files, pyarrow.fs.LocalFileSystem)
        if not local:
            with self._files.open_output_stream(target) as file:
                return _copy(source, file)
        folder, _, last = target.rpartition("/")
        temporary = f"{folder}/.{last}.{secrets.token_hex(8)}.tmp"
        self._files.create_dir(folder, recursive=True)
        try:
            with self._files.open_output_stream(temporary) as file:
                digest = _copy(source, file)
            self._files.move(temporary, target)
        except OSError:
            with suppress(OSError):
                self._files.delete_file(temporary)
            raise
        return digest

    def download(self, name: str, path: Path) -> str:
        """Copy a file to a local path in chunks, and return the sha256 of what was copied. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._files.open_input_stream(f"{self._path}/{name}") as source, path.open("wb") as file:
            digest = _copy(source, file)
            file.flush()
            os.fsync(file.fileno())
        return digest

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing if there is none. Raises OSError."""
        info = self._files.get_file_info(f"{self._path}/{name}")
        if info.type == pyarrow.fs.FileType.Directory:
            self._files.delete_dir(info.path)
        elif info.is_file:
            self._files.delete_file(info.path)


def _copy(source: Any, target: Any) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _impatient(uri: str, seconds: float) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return what `from_uri` gives, which accepts no timeouts."""
    parts = urlsplit(uri)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    overrides = {"endpoint_override": endpoint} if endpoint else {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    files = pyarrow.fs.S3FileSystem(
        **({"region": region} if region else {}) | overrides | options,
        connect_timeout=seconds,
        request_timeout=seconds,
        retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=2),
    )
    return files, f"{parts.netloc}{parts.path}".rstrip("/")
