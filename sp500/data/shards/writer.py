"""Writing shards: training rows and their copies, by one process or by many tasks, to the same bytes.

A shard is a pure function of its source and number. A file appears under its name only when it is whole; the manifest,
with every sha256, is written last, so an interrupted write is continued and a complete set is reused.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sp500.data import augment
from sp500.data.augment import Augmentation
from sp500.data.features import Series
from sp500.data.normalize import Normalizer
from sp500.data.shards.reader import FORMAT, Layout, Shard, ShardSet, as_binary, read_manifest
from sp500.data.windows import Windows
from sp500.errors import DataError
from sp500.storage import Folder

# A shard holds this many series at most (about 150,000 windows, 4 MiB, of 6 features over 18 years), and a set at least
# this many shards where it can, so that workers and shuffling have something to choose from. With 64 series per shard
# the memory of a worker grew more with the size of a set (docs/LOG.md).
SERIES_PER_SHARD = 32
SHARDS_AT_LEAST = 16
SHARD_BYTES = 32 * 2**20


@dataclass(frozen=True)
class WindowsSource:
    """Windows of any shape, each stored whole, and their noisy copies."""

    data: Windows
    multiplier: int
    how: Augmentation

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the bytes."""
        how = self.how
        settings = [how.method, how.noise, how.jitter, how.seed]
        digest = hashlib.sha256(json.dumps([FORMAT, asdict(self.layout), self.multiplier, *settings]).encode())
        for array in (self.data.rows, self.data.starts, self.data.targets):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    @property
    def layout(self) -> Layout:
        """The shape of its windows."""
        data = self.data
        return Layout(
            window=data.length,
            row=data.rows.shape[1:],
            dtype=str(data.rows.dtype),
            target=data.targets.shape[1:],
            target_dtype=str(data.targets.dtype),
            whole=True,
        )

    @property
    def rows(self) -> int:
        """Rows of the whole set."""
        return self.windows * self.data.length

    @property
    def windows(self) -> int:
        """Windows of the whole set."""
        return self.multiplier * len(self.data)

    @property
    def shards(self) -> int:
        """Files of the set."""
        return self.multiplier * self._parts

    def part(self, number: int) -> tuple[int, slice]:
        """Return the number of the copy of which a shard holds windows, and these windows."""
        copy, part = divmod(number, self._parts)
        first, last = (len(self.data) * place // self._parts for place in (part, part + 1))
        return copy, slice(first, last)

    @property
    def _parts(self) -> int:
        """Shards of a copy."""
        count = max(-(-SHARDS_AT_LEAST // self.multiplier), -(-len(self.data) * self.layout.line_bytes // SHARD_BYTES))
        return min(count, len(self.data))

    def table(self, number: int) -> tuple[pa.Table, tuple[int, ...], int]:
        """Return the lines of shard `number`, rows per segment, and windows."""
        copy, part = self.part(number)
        x, y = augment.copy_windows(self.data, part, copy, self.how)
        return pa.table({"x": as_binary(x), "y": as_binary(y)}), (len(x) * self.data.length,), len(x)


@dataclass(frozen=True)
class SeriesSource:
    """Training series of prices, and how they are copied and scaled."""

    series: tuple[Series, ...]
    multiplier: int
    how: Augmentation
    scaler: Normalizer
    target_scale: float
    window: int
    direction: bool

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the bytes."""
        digest = hashlib.sha256(
            json.dumps([FORMAT, self.multiplier, self.target_scale, self.window, self.direction]).encode()
        )
        how = self.how
        digest.update(json.dumps([how.method, how.noise, how.jitter, how.seed, how.horizon]).encode())
        arrays = [self.scaler.shift, self.scaler.scale, how.scale]
        for series in self.series:
            digest.update(series.ticker.encode())
            arrays += [series.x, series.y]
        for array in arrays:
            digest.update(np.ascontiguousarray(array, np.float64).tobytes())
        return digest.hexdigest()[:16]

    @property
    def windows(self) -> int:
        """Windows of the whole set."""
        return self.multiplier * sum(self._windows(series) for series in self.series)

    @property
    def layout(self) -> Layout:
        """The shape of its windows."""
        return Layout(self.window, (self.features,), "float32")

    @property
    def rows(self) -> int:
        """Rows of the whole set."""
        return self.multiplier * sum(len(series.x) for series in self.series)

    @property
    def features(self) -> int:
        """Columns of a row."""
        return int(self.series[0].x.shape[1])

    @property
    def shards(self) -> int:
        """Files of the set."""
        return -(-self.multiplier * len(self.series) // self._per_shard)

    @property
    def _per_shard(self) -> int:
        units = self.multiplier * len(self.series)
        return max(1, min(SERIES_PER_SHARD, units // SHARDS_AT_LEAST))

    def _windows(self, series: Series) -> int:
        return max(int(np.isfinite(series.y).sum()) - self.window + 1, 0)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return np.where(np.isfinite(y), y > 0, np.nan) if self.direction else y / self.target_scale

    def table(self, number: int) -> tuple[pa.Table, tuple[int, ...], int]:
        """Return the rows of shard `number`, rows per segment, and windows."""
        units = range(number * self._per_shard, min((number + 1) * self._per_shard, self.multiplier * len(self.series)))
        segments = [
            augment.copy(self.series[unit % len(self.series)], unit // len(self.series), self.how) for unit in units
        ]
        x = np.concatenate([self.scaler(segment.x) for segment in segments]).astype(np.float32)
        y = np.concatenate([self._targets(segment.y) for segment in segments]).astype(np.float32)
        columns = {"x": as_binary(x), "y": as_binary(y)}
        return (
            pa.table(columns),
            tuple(len(segment.x) for segment in segments),
            sum(self._windows(segment) for segment in segments),
        )


# A union and not a protocol: in Python 3.11 `isinstance` with a protocol evaluates its properties, here a sha256 of all
# rows.
Source = SeriesSource | WindowsSource
"""The source from which a set is made."""


def write_shard(source: Source, number: int, uri: str) -> Shard:
    """Write shard `number`, unless it is there and whole, and return what it holds."""
    folder, name = Folder(uri), f"shard-{number:05d}.parquet"
    data, segments, windows = _encode(source, number)
    shard = Shard(name, segments, windows, len(data), hashlib.sha256(data).hexdigest())
    if folder.size(name) != len(data) or hashlib.sha256(folder.read(name)).hexdigest() != shard.sha256:
        folder.write(name, data)
    return shard


def absolute(uri: str) -> str:
    """Return the same place for processes that run in another folder."""
    return uri.rstrip("/") if "://" in uri else str(Path(uri).expanduser().resolve())


def fingerprint_at(uri: str) -> str | None:
    """Return the fingerprint of the complete set at `uri`; None if there is none."""
    if Folder(uri).size("manifest.json") is None:
        return None
    return str(read_manifest(Folder(uri))["fingerprint"])


def _encode(source: Source, number: int) -> tuple[bytes, tuple[int, ...], int]:
    table, segments, windows = source.table(number)
    buffer = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({"sp500": f"{source.fingerprint}/{number}"}),
        buffer,
        compression="none",  # noise does not compress
        use_dictionary=False,
        write_statistics=False,
        # Without checksums, flipped bytes in a page are read without an error.
        write_page_checksum=True,
    )
    return buffer.getvalue(), segments, windows


def write(
    source: Source, uri: str, each: Callable[[Iterable[int]], Iterable[Shard]] | None = None, *, skip_bad: int = 0
) -> ShardSet:
    """Write the set of `source` to `uri`: reused when complete, else continued, the manifest written last.

    `each` writes the shards of the given numbers, in this process if not given; `skip_bad` as in `ShardSet.open`.
    Raises DataError when another set is there.
    """
    if existing := fingerprint_at(uri):
        if existing != source.fingerprint:
            raise DataError(f"{uri}: holds another set ({existing}, not {source.fingerprint}); choose another folder")
        return ShardSet.open(uri, skip_bad=skip_bad)
    numbers = range(source.shards)
    done = list(each(numbers) if each else (write_shard(source, number, uri) for number in numbers))
    manifest = {
        "format": FORMAT,
        "fingerprint": source.fingerprint,
        "layout": asdict(source.layout),
        "windows": sum(shard.windows for shard in done),
        "shards": [asdict(shard) for shard in sorted(done, key=lambda shard: shard.name)],
    }
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    Folder(uri).write("manifest.json", json.dumps({**manifest, "sha256": digest}, indent=1).encode())
    return ShardSet.open(uri)
