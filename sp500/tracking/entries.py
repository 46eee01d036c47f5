"""Entries for MLflow: plain data, made only of the run's folder.

An entry is one run of MLflow as it should be. A search has an entry for each trial, a walk-forward run one for each
fold; they are children of the run's own. Values that are not finite are left out and counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

from sp500.errors import ConfigError
from sp500.formatting import flatten, size, some
from sp500.machine.disk import file_digest
from sp500.runs.checksums import read_rows
from sp500.runs.cost import RateTable, cost
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.results import FoldRow
from sp500.runs.store import Run
from sp500.runs.trials import Ledger, TrialResult

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
STATUS: Mapping[str, Status] = {"ok": "FINISHED", "out_of_memory": "FAILED", "failed": "FAILED", "stopped": "KILLED"}
SCALARS = (
    *("best_loss", "untrained_loss", "best_epoch", "samples", "samples_per_second", "warm_samples_per_second"),
    *("peak_memory_bytes", "peak_worker_bytes"),
)
"""Fields of a record that are metrics of the run."""
FILES = ("config.yaml", "record.json", "predictions.parquet")
WEIGHTS = ("checkpoints/best/model.safetensors", "checkpoints/best/shard-*.safetensors")
"""One file, or one of each worker."""
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 5000
"""Characters that MLflow keeps."""


@dataclass(frozen=True)
class Point:
    """A value of a metric."""

    key: str
    value: float
    step: int
    time_ms: int
    """Milliseconds since 1970."""


@dataclass(frozen=True)
class File:
    """An artifact."""

    path: Path
    folder: str
    """Folder among the artifacts; empty for none."""
    sha256: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """The identity of the run, in whatever folder it is."""
        return self.folder, self.path.name, self.sha256


@dataclass(frozen=True)
class Entry:
    """A run of MLflow as it should be."""

    run: str
    """Name of our run."""
    part: str
    """Trial or fold of it; empty for the run itself."""
    attempt: str
    """Time when the run's last attempt began (ISO 8601)."""
    status: Status
    started: datetime
    finished: datetime | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[Point]
    left_out: int = 0
    """Values that are not finite."""
    files: Sequence[File] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """The run's name in MLflow."""
        return self.part or self.run

    def digest(self, parent: str) -> str:
        """Return a hash of all that MLflow should hold, including `parent` (the id of the run above)."""
        whole = [parent, asdict(replace(self, files=())), self.digest_of_files]
        return hashlib.sha256(json.dumps(whole, default=str).encode()).hexdigest()

    @property
    def digest_of_files(self) -> str:
        """A hash of the artifacts; empty for none."""
        names = json.dumps([file.identity for file in self.files])
        return hashlib.sha256(names.encode()).hexdigest() if self.files else ""


def read_entries(run: Run, *, rates: RateTable | None = None, weights: bool = False) -> list[Entry]:
    """Return the run's own entry, then those of its trials and folds; none for a folder without a run.

    Raises ConfigError for damaged files.
    """
    is_open = run.is_open()  # first: a run that ends meanwhile has its record
    unended = run.attempt_without_record()
    record = unended or run.record()
    if record is None:
        return []
    going_on = unended is not None and is_open
    attempt = (run.start_record() or record).started.isoformat()
    status: Status = "RUNNING" if going_on else "KILLED" if unended else STATUS[record.status]
    points, left_out = _make_points(run.epochs(), record.finished)
    if status == "FINISHED":
        results, missing = _place(_numbers(_results(record)), record.best_epoch or 0, record.finished)
        points, left_out = [*points, *results], left_out + missing
    own = Entry(
        run=record.name,
        part="",
        attempt=attempt,
        status=status,
        started=record.started,
        finished=None if going_on else record.finished,
        params=_params(_settings(run, record)),
        tags=_tags(record, rates),
        points=points,
        left_out=left_out,
        files=_files(run.path, weights=weights),
    )
    trials = [_make_trial(own, trial) for trial in Ledger(run.path).results.values()]
    # Of a fold that failed and was tried again the last.
    folds = {row["fold"]: row for row in read_rows(run.path / "folds.jsonl", FoldRow)}
    return [own, *trials, *(_make_fold(own, folds[number]) for number in sorted(folds))]


def _make_trial(own: Entry, trial: TrialResult) -> Entry:
    finished = trial.finished or own.started
    numbers = {
        "valid_loss": trial.valid_loss,
        "naive_loss": trial.naive_loss,
        "best_epoch": trial.best_epoch,
        "valid_excess_sharpe": trial.valid_excess_sharpe,
    }
    known = {name: value for name, value in numbers.items() if value is not None}
    work = {"epochs": trial.epochs, "samples": trial.samples, "seconds": trial.seconds}
    points, left_out = _place(_numbers(known | work), 0, finished)
    return Entry(
        run=own.run,
        part=f"trial {trial.id}",
        attempt=own.attempt,
        status=STATUS[trial.status],
        started=finished - timedelta(seconds=trial.seconds),
        finished=finished,
        params=_params(trial.overrides),
        tags={name: value for name, value in {"dataset": trial.dataset, "reason": trial.reason}.items() if value},
        points=points,
        left_out=left_out,
    )


def _make_fold(own: Entry, row: FoldRow) -> Entry:
    names = ("seconds", "best_epoch", "epochs", "samples", "peak_worker_bytes")
    numbers = {name: row[name] for name in names if row.get(name) is not None}  # type: ignore[literal-required]
    scores = {name: row.get(name, {}) for name in ("test", "naive", "improvement")}
    # Folds have no time of their own, so all bear that of the run's start.
    points, left_out = _place(_numbers(numbers | scores), 0, own.started)
    dates = {name: " to ".join(ends) for name, ends in row["splits"].items()}
    return Entry(
        run=own.run,
        part=f"fold {row['fold']}",
        attempt=own.attempt,
        status=STATUS[row["status"]],
        started=own.started,
        finished=own.started + timedelta(seconds=row["seconds"] or 0.0),
        params=_params({**dates, "blind": row["blind"]}),
        tags={"reason": row["reason"][:LONGEST_TAG]} if row["reason"] else {},
        points=points,
        left_out=left_out,
    )


def _make_points(epochs: Sequence[EpochMetrics], last: datetime) -> tuple[list[Point], int]:
    """Return a point per epoch and number, and how many were not finite.

    A line of an earlier version has no time: the last epoch ended at `last`, those before it one after another.
    """
    points, left_out, end = list[Point](), 0, last
    for epoch in reversed(epochs):
        end = epoch.finished or end
        numbers = epoch.model_dump(exclude={"epoch", "finished"}, exclude_none=True)
        placed, missing = _place(_numbers(numbers), epoch.epoch, end)
        points, left_out, end = placed + points, left_out + missing, end - timedelta(seconds=epoch.seconds)
    return points, left_out


def _results(record: RunRecord) -> dict[str, object]:
    scalars = {name: getattr(record, name) for name in SCALARS}
    known = {name: value for name, value in scalars.items() if value is not None}
    # A section of their own: the epochs have `samples` and `seconds`, too.
    return {**record.metrics, "run": {**known, "seconds": record.seconds.model_dump()}}


def _numbers(values: Mapping[str, object], section: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield numbers by dotted name. None replaces one that was not finite, which JSON cannot hold."""
    for name, value in values.items():
        key = f"{section}{name}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{key}.")
        elif name.endswith("_interval") and isinstance(value, Sequence) and len(value) == 2:
            yield from _numbers({"low": value[0], "high": value[1]}, f"{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield key, value


def _place(numbers: Iterator[tuple[str, float | None]], step: int, when: datetime) -> tuple[list[Point], int]:
    """Return numbers as points at one step, and how many were not finite."""
    pairs = list(numbers)
    finite = {_key(name): float(value) for name, value in pairs if value is not None and math.isfinite(value)}
    missing = sum(value is None or not math.isfinite(value) for _, value in pairs)
    time_ms = round(when.timestamp() * 1000)
    return [Point(name, value, step, time_ms) for name, value in finite.items()], missing


def _key(name: str) -> str:
    """Return a name with only the characters that MLflow accepts."""
    return re.sub(r"[^\w. -]", "_", name, flags=re.ASCII)[:LONGEST_KEY]


def _settings(run: Run, record: RunRecord) -> dict[str, object]:
    """Return the effective settings without the run's folder, which may change."""
    try:
        settings = yaml.safe_load((run.path / "config.yaml").read_text())
    except FileNotFoundError:
        settings = record.config
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{run.path / 'config.yaml'}: cannot be read ({str(error).splitlines()[0]})") from error
    return {name: value for name, value in settings.items() if name != "io"}


def _params(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings by dotted name; those that are not set are left out."""
    params = flatten(settings).items()
    return {_key(name): _text(value)[:LONGEST_PARAM] for name, value in params if value not in (None, [], {})}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _tags(record: RunRecord, rates: RateTable | None) -> dict[str, str]:
    """Return what the run was, where, and what it cost."""
    machine = record.machine
    ray = f", Ray with {some(round(machine.cluster.get('CPU', 0)), 'CPU')}" if machine.cluster else ""
    paid = cost(record, rates) if rates else None
    tags = {
        "fingerprint": record.fingerprint,
        "experiment": record.experiment,
        "arm": record.arm,
        "status": record.status,
        "reason": record.reason[:LONGEST_TAG],
        "git": record.versions.get("git", ""),
        "versions": json.dumps(record.versions),
        "machine": f"{some(machine.cpus, 'CPU')}, {size(machine.memory_bytes)}, {machine.system}{ray}",
        "device": record.device,
        "price": f"{paid.amount:.6g} {rates.currency}" if paid and rates else "",
    }
    return {name: value for name, value in tags.items() if value}


def _files(folder: Path, *, weights: bool) -> list[File]:
    names = FILES + WEIGHTS if weights else FILES
    return [_file(path) for name in names for path in sorted(folder.glob(name)) if path.is_file()]


def _file(path: Path) -> File:
    status = path.stat()
    folder = "best" if path.suffix == ".safetensors" else ""
    return File(path, folder, _sha256(path.resolve(), status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=10_000)
def _sha256(path: Path, size_bytes: int, mtime_ns: int) -> str:
    """Return the hash of a file, read again only if its size or time has changed."""
    return file_digest(path)
