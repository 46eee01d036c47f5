"""A folder on any filesystem that pyarrow knows: a local path, s3://, gs://."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

from sp500.errors import DataError, DiskError
from sp500.machine.disk import FULL, explained, write_atomic


class Folder:
    """A folder on any filesystem that pyarrow knows: a path, s3://, gs://. Raises DataError for another scheme."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        if "://" not in uri:
            self._files, self._path = pyarrow.fs.LocalFileSystem(), uri
            return
        try:
            self._files, self._path = pyarrow.fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{uri}: cannot be opened ({error}); take a path, s3:// or gs://") from error

    def read(self, name: str) -> bytes:
        """A whole file. Raises OSError."""
        with self._files.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """A whole file or nothing: under a name of its own first, then moved, so that writers of the same set may meet.

        Raises DiskError for a full disk, DataError for a place that cannot be written.
        """
        if isinstance(self._files, pyarrow.fs.LocalFileSystem):
            path = Path(self._path, name)
            try:
                with explained(path):
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
        """Bytes of a file; None where there is none."""
        info = self._files.get_file_info(f"{self._path}/{name}")
        return int(info.size) if info.is_file else None

    def sizes(self) -> dict[str, int]:
        """Bytes of each file in the folder."""
        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True)
        return {info.base_name: info.size for info in self._files.get_file_info(selector) if info.is_file}
