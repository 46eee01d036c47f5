"""A folder on any filesystem that pyarrow knows: a local path, s3://, gs://."""

from __future__ import annotations

import pyarrow.fs


class Folder:
    """A folder on any filesystem that pyarrow knows: a path, s3://, gs://."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        if "://" in uri:
            self._files, self._path = pyarrow.fs.FileSystem.from_uri(uri)
        else:
            self._files, self._path = pyarrow.fs.LocalFileSystem(), uri

    def read(self, name: str) -> bytes:
        """A whole file. Raises OSError."""
        with self._files.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """A whole file or nothing: elsewhere first, then moved to its name."""
        self._files.create_dir(self._path, recursive=True)
        temporary = f"{self._path}/.{name}.tmp"
        with self._files.open_output_stream(temporary) as file:
            file.write(data)
        self._files.move(temporary, f"{self._path}/{name}")

    def sizes(self) -> dict[str, int]:
        """Bytes of each file in the folder."""
        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True)
        return {info.base_name: info.size for info in self._files.get_file_info(selector) if info.is_file}
