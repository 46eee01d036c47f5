"""The log of answers: Parquet next to the models, to be judged when the prices are known."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa

from sp500.errors import ConfigError, SP500Error
from sp500.machine.disk import explain_errors

log = logging.getLogger(__name__)

FOLDER = "answers"
FLUSH_SECONDS = 30.0
"""Answers are written together: a file for each would be a million a week."""
PARTS, MOST_JOINED = 60, 100_000
"""Files that a process has written are joined when there are so many, until one has so many answers: a week of half
minutes would be 20,000 files, and `score` reads each.
"""
MOST_KEPT = 50_000
"""Answers that wait in memory at most, where the disk takes none; the oldest are dropped then."""


class AnswerLog:
    """The log of one process. Rows that are not flushed are lost when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[Mapping[str, object]] = []
        self._writing: list[Mapping[str, object]] = []
        """Rows that are being written to a file. A reader needs them meanwhile."""
        self._written: list[Path] = []
        self._flushed = time.monotonic()
        self._lock = threading.Lock()

    def add(self, row: Mapping[str, object]) -> None:
        """Keep one answer."""
        with self._lock:
            self._rows.append({"at": datetime.now(UTC), **row})
            del self._rows[:-MOST_KEPT]

    def flush_in_time(self) -> None:
        """As `flush`, but not more often than every FLUSH_SECONDS. Raises DiskError."""
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._flushed = time.monotonic()
            self.flush()

    def flush(self) -> None:
        """Write what was kept as one file. Raises DiskError, and keeps the answers then."""
        with self._lock:  # not while it is written: requests add to it
            self._writing, self._rows = self._rows, []
        if not self._writing:
            return
        try:
            self._written.append(self._write(pd.DataFrame(self._writing)))
        except Exception:
            with self._lock:
                self._rows = [*self._writing, *self._rows]
            raise
        finally:
            self._writing = []
        if len(self._written) >= PARTS:
            self._join()

    def _write(self, table: pd.DataFrame) -> Path:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.parquet"
        path, hidden = self.folder / name, self.folder / f".{name}"
        with explain_errors(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            table.to_parquet(hidden)
            hidden.rename(path)
        return path

    def _join(self) -> None:
        """Make one file of those that this process wrote; all stay as they are where one is damaged or gone.

        Killed in between, some answers are in two files: see `_whole`.
        """
        parts, self._written = self._written, []
        try:
            tables = _tables(parts)
            if len(tables) < len(parts):
                return
            joined = _whole(tables)
            path = self._write(joined)
            for part in parts:
                part.unlink(missing_ok=True)
        except (SP500Error, OSError) as error:
            log.warning("%s: the files of answers are not joined: %s", self.folder, error)
            return
        self._written = [path] if len(joined) < MOST_JOINED else []

    def read(self) -> pd.DataFrame:
        """Every answer of the model, those of this process up to now; empty where there is none."""
        with self._lock:
            rows = [*self._writing, *self._rows]
        # Taken before the files are read: what is written meanwhile is in both.
        waiting = [pd.DataFrame(rows)] if rows else []
        return _whole([*_everything(self.folder), *waiting])


def read(folder: Path) -> pd.DataFrame:
    """Every answer in the files of a model, in order of time. Raises ConfigError where there is none."""
    tables = _everything(folder)
    if not tables:
        raise ConfigError(
            f"{folder}: no answers were logged (only forecasts of prices are), or none of the files can be read"
        )
    return _whole(tables).sort_values("at", kind="stable")


def _everything(folder: Path) -> list[pd.DataFrame]:
    for _ in range(5):
        paths = [path for path in sorted(folder.glob("[!.]*.parquet")) if path.exists()]
        try:
            return _tables(paths)
        except FileNotFoundError:  # joined with others meanwhile, under a name that was not there yet
            continue
    raise ConfigError(f"{folder}: its files change all the time; try again")


def _whole(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows of the tables, each once: while files are written or joined, an answer is in two of them."""
    return pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True) if tables else pd.DataFrame()


def _tables(paths: Sequence[Path]) -> list[pd.DataFrame]:
    tables = []
    for path in paths:
        try:
            tables.append(pd.read_parquet(path))
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            log.warning("%s is left out: %s", path, error)
    return tables
