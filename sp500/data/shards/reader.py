"""Shards: training series and their copies as segments in Parquet, each day once.

Windows are not stored: they are views over the rows, made by the loader (30 times less on disk and on the wire). Every
shard is checked against the manifest when it is read; the price is a sha256 of what is read anyway.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sp500.data.shards.folder import Folder
from sp500.errors import DataError

FORMAT = 1


@dataclass(frozen=True)
class Chunk:
    """What one shard holds: rows [row, feature], targets [window], and each window's first row.

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
    window: int
    features: int
    shards: tuple[Shard, ...]
    dropped: tuple[str, ...] = ()
    """Bad shards left out, with reasons."""

    @classmethod
    def open(cls, uri: str, *, skip_bad: int = 0) -> ShardSet:
        """The set at `uri`. Every file must be there with its size; contents are checked when they are read.

        With `skip_bad`, all contents are checked now, and up to that many bad shards are left out. Raises DataError
        that names the bad file.
        """
        folder = Folder(uri)
        manifest = manifest_of(folder)
        shards = tuple(Shard(**{**one, "segments": tuple(one["segments"])}) for one in manifest["shards"])
        found = cls(uri, manifest["fingerprint"], manifest["window"], manifest["features"], shards)
        sizes, bad = folder.sizes(), {}
        for shard in shards:
            try:
                if sizes.get(shard.name) != shard.bytes:
                    raise DataError(f"{uri}/{shard.name}: has {sizes.get(shard.name, 'no')} bytes, not {shard.bytes}")
                if skip_bad:
                    found.read(shard)
            except DataError as error:
                bad[shard.name] = str(error)
        if len(bad) > skip_bad:
            way_out = "remove manifest.json and write the set again, or --skip-bad-shards"
            raise DataError(f"{len(bad)} bad shard(s): {'; '.join(bad.values())}; {way_out}")
        kept = tuple(shard for shard in shards if shard.name not in bad)
        return cls(uri, found.fingerprint, found.window, found.features, kept, tuple(bad.values()))

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
        """Contents of one shard. Raises DataError that names the file when it is not the one that was written."""
        return chunk(self.table(shard), shard, self)

    def table(self, shard: Shard) -> pa.Table:
        """The same as it was stored: columns x0, x1, ... and y."""
        try:
            data = Folder(self.uri).read(shard.name)
        except OSError as error:
            raise DataError(f"{self.uri}/{shard.name}: cannot be read ({error})") from error
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise DataError(f"{self.uri}/{shard.name}: is not what was written (checksum differs)")
        return pq.read_table(pa.BufferReader(data), page_checksum_verification=True, use_threads=False)


def chunk(table: pa.Table, shard: Shard, of: ShardSet) -> Chunk:
    """Arrays of a shard's table; windows lie inside a segment and have a known target."""
    columns = [table.column(f"x{number}").to_numpy() for number in range(of.features)]
    y = table.column("y").to_numpy()
    ends = np.cumsum(shard.segments)
    first = np.concatenate(
        [np.arange(end - rows, end - of.window + 1) for rows, end in zip(shard.segments, ends, strict=True)]
    )
    targets = y[first + of.window - 1]
    known = np.isfinite(targets)
    return Chunk(np.stack(columns, axis=1), targets[known], first[known].astype(np.int64), of.firsts[shard.name])


def manifest_of(folder: Folder) -> dict[str, Any]:
    """What the manifest of a set says. Raises DataError that names it when it is missing or not what was written."""
    name = f"{folder.uri}/manifest.json"
    try:
        manifest = json.loads(folder.read("manifest.json"))
        digest = manifest.pop("sha256")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error}); the set is not complete, write it again") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{name} is not a valid manifest ({error})") from error
    if hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() != digest:
        raise DataError(f"{name}: does not match its checksum")
    if manifest["format"] != FORMAT:
        raise DataError(f"{name}: has format {manifest['format']}, this version reads {FORMAT}")
    return dict(manifest)
