"""Answers that were given, kept as Parquet beside the models, so that they can be judged when the prices are there."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sp500.errors import ConfigError
from sp500.machine.disk import explained

log = logging.getLogger(__name__)

FOLDER = "answers"
FLUSH_SECONDS = 30.0
"""Answers are written together: a file for each would be a million a week."""
MOST_KEPT = 50_000
"""Answers that wait in memory at most, where the disk takes none; the oldest are dropped then."""


class AnswerLog:
    """Of one process. What it has not flushed is lost when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        self._lock = threading.Lock()

    def add(self, row: dict[str, Any]) -> None:
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
            rows, self._rows = self._rows, []
        if not rows:
            return
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.parquet"
        path, hidden = self.folder / name, self.folder / f".{name}"
        try:
            with explained(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_parquet(hidden)
                hidden.rename(path)
        except Exception:
            with self._lock:
                self._rows = [*rows, *self._rows]
            raise

    def read(self) -> pd.DataFrame:
        """Every answer of the model, those of this process up to now; empty where there is none."""
        with self._lock:
            waiting = [pd.DataFrame(self._rows)] if self._rows else []
        tables = [*_tables(self.folder), *waiting]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def read(folder: Path) -> pd.DataFrame:
    """Every answer in the files of a model, in order of time. Raises ConfigError where there is none."""
    tables = _tables(folder)
    if not tables:
        raise ConfigError(f"{folder}: no answers were logged, or none of the files can be read")
    return pd.concat(tables, ignore_index=True).sort_values("at", kind="stable")


def _tables(folder: Path) -> list[pd.DataFrame]:
    tables = []
    for path in sorted(folder.glob("[!.]*.parquet")):
        try:
            tables.append(pd.read_parquet(path))
        except (pa.ArrowException, OSError) as error:
            log.warning("%s is left out: %s", path, error)
    return tables
