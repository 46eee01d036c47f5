"""Answers that were given, kept as Parquet beside the models, so that they can be judged when the prices are there."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sp500.errors import ConfigError
from sp500.machine.disk import explained

FOLDER = "answers"
MOST_KEPT = 5_000
"""Answers that wait in memory at most; more are written at once."""


class AnswerLog:
    """Of one process. What it has not flushed is lost when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[dict[str, Any]] = []
        self._files = 0
        self._lock = threading.Lock()

    def add(self, row: dict[str, Any]) -> None:
        """Keep one answer."""
        with self._lock:
            self._rows.append({"at": datetime.now(UTC), **row})
            full = len(self._rows) >= MOST_KEPT
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what was kept as one file. Raises DiskError, and keeps the answers then."""
        with self._lock:
            if not self._rows:
                return
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{self._files:06}.parquet"
            path, hidden = self.folder / name, self.folder / f".{name}"
            with explained(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(self._rows).to_parquet(hidden)
                hidden.rename(path)
            self._rows, self._files = [], self._files + 1


def read(folder: Path) -> pd.DataFrame:
    """Every answer of a model, in order of time. Raises ConfigError where there is none."""
    files = sorted(folder.glob("[!.]*.parquet"))
    if not files:
        raise ConfigError(f"{folder}: no answers were logged")
    return pd.concat([pd.read_parquet(path) for path in files], ignore_index=True).sort_values("at", kind="stable")
