"""Shards: training rows and their copies in Parquet, in one of two layouts.

A series of prices is stored as rows, each day once: its windows overlap, and are views that the loader makes (30 times
less on disk and on the wire). Images, texts and windows that were prepared elsewhere are stored as windows. Every shard
is checked against the manifest when it is read; the price is a sha256 of what is read anyway.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sp500.errors import DataError
from sp500.formatting import name_command, some
from sp500.storage import Folder

FORMAT = 2


@dataclass(frozen=True)
class Layout:
    """The shape of the windows of a set.

    window: rows of each; row and target: shapes; dtype and target_dtype: of the numbers. `whole`: a line of the table
    is a window and its target; otherwise it is a row of a series, and the target of the window that ends there.
    """

    window: int
    row: tuple[int, ...]
    dtype: str
    target: tuple[int, ...] = ()
    target_dtype: str = "float32"
    whole: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row) * np.dtype(self.dtype).itemsize

    @property
    def line_bytes(self) -> int:
        """Bytes that a window adds to the table: with overlapping ones a row, and a target."""
        rows = self.row_bytes * (self.window if self.whole else 1)
        return rows + math.prod(self.target) * np.dtype(self.target_dtype).itemsize


def as_binary(array: np.ndarray) -> pa.Array:
    """Return numbers [line, ...] as a column of the same bytes."""
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(flat.dtype.itemsize * flat.shape[1]), len(flat), [None, pa.py_buffer(flat)]
    )


def from_binary(column: pa.ChunkedArray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers [line, *shape] over the column's memory: the inverse of `as_binary`."""
    array = column.combine_chunks()
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    return data.view(dtype).reshape(len(array), *shape)


@dataclass(frozen=True)
class Chunk:
    """The contents of one shard: rows [row, ...], targets [window, ...], and each window's first row.

    `first` is the number of its first window in the set, which is its number in the training windows in memory too.
    """

    rows: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    first: int


@dataclass(frozen=True)
class Shard:
    """One file of a set. `segments`: rows of each series segment, in order."""

    name: str
    segments: tuple[int, ...]
    windows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardSet:
    """A complete set, as its manifest describes it."""

    uri: str
    fingerprint: str
    layout: Layout
    shards: tuple[Shard, ...]
    dropped: tuple[str, ...] = ()
    """Bad shards left out, with reasons."""

    @classmethod
    def open(cls, uri: str, *, skip_bad: int = 0) -> ShardSet:
        """Open the set at `uri`. Every file must be there with its size; contents are checked when they are read.

        With `skip_bad`, all contents are checked now, and up to that many bad shards are left out. Raises DataError
        that names the bad file.
        """
        folder = Folder(uri)
        manifest = read_manifest(folder)
        shards = tuple(Shard(**{**entry, "segments": tuple(entry["segments"])}) for entry in manifest["shards"])
        fields = manifest["layout"]
        layout = Layout(**{**fields, "row": tuple(fields["row"]), "target": tuple(fields["target"])})
        whole = cls(uri, manifest["fingerprint"], layout, shards)
        sizes, bad = folder.sizes(), {}
        for shard in shards:
            try:
                if sizes.get(shard.name) != shard.bytes:
                    raise DataError(f"{uri}/{shard.name}: has {sizes.get(shard.name, 'no')} bytes, not {shard.bytes}")
                if skip_bad:
                    whole.read(shard)
            except DataError as error:
                bad[shard.name] = str(error)
        if len(bad) > skip_bad:
            way_out = "remove manifest.json and write the set again, or --skip-bad-shards"
            raise DataError(f"{some(len(bad), 'bad shard')}: {'; '.join(bad.values())}; {way_out}")
        good = tuple(shard for shard in shards if shard.name not in bad)
        return cls(uri, whole.fingerprint, layout, good, tuple(bad.values()))

    @property
    def windows(self) -> int:
        """Windows of all shards."""
        return sum(shard.windows for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def named(self) -> dict[str, Shard]:
        """Shards by name."""
        return {shard.name: shard for shard in self.shards}

    @cached_property
    def firsts(self) -> dict[str, int]:
        """Number of each shard's first window in the set, by name."""
        counts = itertools.accumulate((shard.windows for shard in self.shards), initial=0)
        return {shard.name: first for shard, first in zip(self.shards, counts, strict=False)}

    def read(self, shard: Shard) -> Chunk:
        """Read the contents of one shard. Raises DataError that names a file that differs from what was written."""
        return chunk(self.table(shard), shard, self)

    def table(self, shard: Shard) -> pa.Table:
        """Read the shard as it was stored: columns x and y."""
        try:
            data = Folder(self.uri).read(shard.name)
        except OSError as error:
            raise DataError(f"{self.uri}/{shard.name}: cannot be read ({error})") from error
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise DataError(f"{self.uri}/{shard.name}: is not what was written (checksum differs)")
        return pq.read_table(pa.BufferReader(data), page_checksum_verification=True, use_threads=False)


def chunk(table: pa.Table, shard: Shard, of: ShardSet) -> Chunk:
    """Return the arrays of a shard's table; windows of a series lie inside a segment and have a known target."""
    layout, number = of.layout, of.firsts[shard.name]
    y = from_binary(table.column("y"), layout.target_dtype, layout.target)
    if layout.whole:
        rows = from_binary(table.column("x"), layout.dtype, (layout.window, *layout.row)).reshape(-1, *layout.row)
        return Chunk(rows, y, np.arange(len(y), dtype=np.int64) * layout.window, number)
    ends = np.cumsum(shard.segments)
    first = np.concatenate(
        [np.arange(end - rows, end - layout.window + 1) for rows, end in zip(shard.segments, ends, strict=True)]
    )
    targets = y[first + layout.window - 1]
    known = np.isfinite(targets)
    rows = from_binary(table.column("x"), layout.dtype, layout.row)
    return Chunk(rows, targets[known], first[known].astype(np.int64), number)


def read_manifest(folder: Folder) -> dict[str, Any]:
    """Read the manifest of a set. Raises DataError that names it if it is missing or differs from what was written."""
    name = f"{folder.uri}/manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(folder.read("manifest.json"))
        digest = manifest.pop("sha256")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error}); the set is not complete, write it again") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{name} is not a valid manifest ({error})") from error
    if hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() != digest:
        raise DataError(f"{name}: does not match its checksum")
    if manifest["format"] != FORMAT:
        raise DataError(
            f"{name}: has format {manifest['format']}, this version reads {FORMAT}; remove it and write it again: "
            f"{name_command('prepare', '--out FOLDER')}"
        )
    return manifest
