"""The log of answers: Parquet next to the models, to be judged when the prices are known.

Of the answers of one version, in one role, to the same prices of one ticker and date, the last counts, and only that
one stays when files are joined. So the log grows with the days that are asked about, and not with the requests.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sp500.errors import ConfigError, SP500Error, undo_on_error
from sp500.machine.disk import explain_errors

log = logging.getLogger(__name__)

FOLDER = "answers"
KEY = ("run", "version", "role", "ticker", "as_of")
"""Of the answers that are alike in these the last one counts."""
PRICES = "trace_0"
"""Column that distinguishes the prices that forecasts were made from: made-up ones must not replace others."""
WORDS = (*KEY, "session", "unit")
"""Columns of text: read as numbers of a dictionary."""
FLUSH_SECONDS = 30.0
"""Answers are written together: a file for each would be a million a week."""
PARTS = 60
"""Files of a model that are joined when there are so many: a week of half minutes would be 20,000 files."""
MOST_ANSWERS = 500_000
"""Answers that stay when files are joined; the oldest are dropped then. Anybody who may ask can invent tickers."""
MOST_KEPT = 50_000
"""Answers that wait in memory at most, if the disk takes none; the oldest are dropped then."""


class AnswerLog:
    """The log of one process. Rows that are not flushed are lost when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[Mapping[str, object]] = []
        self._writing: list[Mapping[str, object]] = []
        """Rows that are being written to a file. A reader needs them meanwhile."""
        self._flushed = time.monotonic()
        self._lock = threading.Lock()

    def add(self, row: Mapping[str, object]) -> None:
        """Keep one answer."""
        with self._lock:
            self._rows.append({"at": datetime.now(UTC), **row})
            del self._rows[:-MOST_KEPT]

    def flush_in_time(self) -> None:
        """Write as `flush` does, but not more often than every FLUSH_SECONDS. Raises DiskError."""
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
            with undo_on_error(self._put_back):
                _write(self.folder, _table(self._writing))
        finally:
            self._writing = []
        parts = _files(self.folder)
        if len(parts) >= PARTS:
            _join(self.folder, parts)

    def _put_back(self) -> None:
        with self._lock:
            self._rows = [*self._writing, *self._rows]

    def read(self) -> pa.Table:
        """Return the last answers of the model, those of this process up to now; empty if there is none."""
        with self._lock:
            rows = [*self._writing, *self._rows]
        # Taken before the files are read: what is written meanwhile is in both.
        waiting = [_table(rows)] if rows else []
        return _last([*_everything(self.folder), *waiting])


def read(folder: Path) -> pa.Table:
    """Return the last answers in the files of a model, in order of time. Raises ConfigError if there is none."""
    tables = _everything(folder)
    if not tables:
        raise ConfigError(
            f"{folder}: no answers were logged (only forecasts of prices are), or none of the files can be read"
        )
    return _last(tables)


def _table(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    table = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
    for name in set(WORDS) & set(table.column_names):
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    return table


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.parquet"))


def _write(folder: Path, table: pa.Table) -> None:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}.parquet"
    path, hidden = folder / name, folder / f".{name}"
    with explain_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, hidden)
        hidden.rename(path)


def _join(folder: Path, parts: Sequence[Path]) -> None:
    """Make one file of those, with only the last answers; all stay as they are if one is damaged or gone.

    Killed in between, or while another process does it as well, answers are in two files, of which readers use one.
    """
    try:
        tables = _tables(parts, whole=True)
        if len(tables) < len(parts):
            return
        _write(folder, _last(tables)[-MOST_ANSWERS:])
        for part in parts:
            part.unlink(missing_ok=True)
    except (SP500Error, OSError) as error:
        log.warning("%s: the files of answers are not joined: %s", folder, error)
    finally:
        pa.default_memory_pool().release_unused()


def _everything(folder: Path) -> list[pa.Table]:
    for _ in range(5):
        try:
            return _tables(_files(folder))
        except FileNotFoundError:  # joined with others meanwhile, under a name that was not there yet
            continue
    raise ConfigError(f"{folder}: its files change all the time; try again")


def _last(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the last of the answers that are alike, in order of time.

    Compared as numbers, since there may be a million.
    """
    if not tables:
        return pa.table({})
    table = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    order = pc.sort_indices(table["at"]).to_numpy()
    words = [table[name].chunks for name in KEY if name in table.column_names]
    keys = {number: np.concatenate([part.indices for part in parts])[order] for number, parts in enumerate(words)}
    if PRICES in table.column_names:
        keys[len(keys)] = table[PRICES].to_numpy()[order]
    return table.take(order[~pd.DataFrame(keys).duplicated(keep="last")])


def _tables(paths: Sequence[Path], *, whole: bool = False) -> list[pa.Table]:
    """Return what is in the files; without what no score needs, unless they are wanted `whole`."""
    tables = []
    for path in paths:
        try:
            with pq.ParquetFile(path, read_dictionary=WORDS) as file:
                names = [name for name in file.schema_arrow.names if whole or name != "request_id"]
                tables.append(file.read(names, use_threads=False))  # each thread keeps memory of its own
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            log.warning("%s is left out: %s", path, error)
    return tables
