"""The runs of a folder as those of one experiment of MLflow. The only module that imports mlflow.

MLflow keeps whatever was logged: no parameter and no point can be changed. A run of which something else was logged
than our run says now (it was made again under its name, or continues with other settings) is therefore made again there
as well, and the old one goes to MLflow's trash. Tags and notes of its reader go with it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import requests
from filelock import FileLock
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from sp500.credentials import mask
from sp500.errors import ConfigError, ResourcesError, SP500Error, Unreachable, extra
from sp500.runs.cost import RateTable
from sp500.runs.store import REPORT, Run
from sp500.tracking.address import Address
from sp500.tracking.entries import Entry, Point, read_entries

T = TypeVar("T")
Key = tuple[str, str]
"""Name of our run, and its part."""

SECONDS = 20
"""An answer of MLflow needs no longer; files may."""
FILE_SECONDS = 600
ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""Instead of 120 s and 7 retries, after which a sync would end in half an hour: the next one does what is missing."""
RUN, PART, ATTEMPT = "sp500.run", "sp500.part", "sp500.attempt"
FILES = "sp500.files"
"""Hash of the artifacts that are there."""
SYNCED = "sp500.synced"
"""Hash of all that is there, written last: if it fits nothing is left to do."""
KIND = "mlflow.experimentKind"
"""By which the pages of MLflow show models in training, and no traces of language models."""
PARENT, COMMIT = "mlflow.parentRunId", "mlflow.source.git.commit"
LOCK = ".mlflow.lock"
FOREIGN = re.compile(r"Response( body)?: ")
"""In mlflow's message for an answer that is not one of its API: the page of a proxy, or of another server."""
MOST_PARAMS, MOST_POINTS = 80, 800
"""In one request. MLflow accepts 100 parameters, and 1,000 of everything."""


@dataclass(frozen=True)
class Kept:
    """A run of MLflow as it is."""

    id: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: frozenset[str]


@dataclass(frozen=True)
class Change:
    """Change that a sync made to one of our runs."""

    run: str
    state: Literal["new", "changed", "made anew", "same"]
    parts: int
    """Trials or folds: its children in MLflow."""
    points: int
    """Values that were written."""
    left_out: int
    """Values that are not finite."""


class Mirror:
    """MLflow's copy of one folder of runs.

    Raises Unreachable if MLflow does not answer, ResourcesError if something else does, ConfigError for an
    experiment in its trash and where it is missing.
    """

    def __init__(self, address: Address, experiment: str) -> None:
        self._client = _client(address)
        existing = _find_experiment(self._client, experiment, address.uri)
        if existing is not None and existing.lifecycle_stage != "active":
            raise ConfigError(f"--experiment {experiment}: is in MLflow's trash; restore it there, or use another name")
        self._experiment = existing.experiment_id if existing else self._make(experiment, address)
        self._kept: dict[Key, list[Kept]] = {}
        for run in self._all():
            self._kept.setdefault((run.tags[RUN], run.tags.get(PART, "")), []).append(run)

    def _make(self, experiment: str, address: Address) -> str:
        created = ask(self._client.create_experiment, experiment, address.artifacts, {KIND: "custom_model_development"})
        return str(created)

    def put(self, entries: Sequence[Entry]) -> Change:
        """Bring a run and its parts up to date.

        Raises Unreachable if MLflow does not answer, ResourcesError if it refuses, ConfigError if it holds a
        later run of that name.
        """
        own, *parts = entries
        attempts = [run.tags.get(ATTEMPT, own.attempt) for run in self._kept.get((own.run, ""), ())]
        if any(datetime.fromisoformat(attempt) > datetime.fromisoformat(own.attempt) for attempt in attempts):
            raise ConfigError(
                f"run {own.run!r}: MLflow holds a later run of that name, from another folder. Use another --experiment"
            )
        parent, state, points = self._put(own, "")
        for part in parts:
            _, part_state, written = self._put(part, parent)
            points += written
            state = "changed" if state == "same" != part_state else state
        wanted = {(entry.run, entry.part) for entry in entries}
        for key in [key for key in self._kept if key[0] == own.run and key not in wanted]:
            for run in self._kept.pop(key):
                ask(self._client.delete_run, run.id)
        return Change(own.run, state, len(parts), points, sum(entry.left_out for entry in entries))

    def _put(self, entry: Entry, parent: str) -> tuple[str, Literal["new", "changed", "made anew", "same"], int]:
        """Write an entry's run. Returns its id, what became of it, and how many points were written."""
        digest = entry.digest(parent)
        run = self._find_one(entry, digest)
        if run and run.tags.get(SYNCED) == digest:
            return run.id, "same", 0
        if run is None:
            created = self._create(entry, parent, {})
            return created.id, "new", self._complete(created, entry, parent, digest, {})
        stored = self._points(run)
        if not _contradicts(run, stored, entry):
            return run.id, "changed", self._complete(run, entry, parent, digest, stored)
        theirs = {name: value for name, value in run.tags.items() if not name.startswith("sp500.")}
        created = self._create(entry, parent, theirs)
        ask(self._client.delete_run, run.id)
        return created.id, "made anew", self._complete(created, entry, parent, digest, {})

    def _find_one(self, entry: Entry, digest: str) -> Kept | None:
        """Return the run of an entry. Of duplicates, made when an answer was lost, one is left."""
        copies = sorted(self._kept.get((entry.run, entry.part), ()), key=lambda run: run.tags.get(SYNCED) != digest)
        for run in copies[1:]:
            ask(self._client.delete_run, run.id)
        return copies[0] if copies else None

    def _create(self, entry: Entry, parent: str, theirs: Mapping[str, str]) -> Kept:
        tags = {**theirs, RUN: entry.run, PART: entry.part, ATTEMPT: entry.attempt, **_above(parent)}
        tags = {name: value for name, value in tags.items() if value}
        started = round(entry.started.timestamp() * 1000)
        created = ask(self._client.create_run, self._experiment, started, tags, entry.name)
        return _read(created)

    def _complete(
        self, run: Kept, entry: Entry, parent: str, digest: str, stored: Mapping[tuple[str, int], object]
    ) -> int:
        """Write what a run lacks, its hash last. Returns the number of points."""
        if run.tags.get(FILES, "") != entry.digest_of_files:
            for file in entry.files:
                ask(self._client.log_artifact, run.id, str(file.path), file.folder or None, seconds=FILE_SECONDS)
        if entry.finished:
            ask(self._client.set_terminated, run.id, entry.status, round(entry.finished.timestamp() * 1000))
        elif run.status != entry.status:
            ask(self._client.update_run, run.id, entry.status)
        ours = {f"sp500.{name}": value for name, value in entry.tags.items()}
        fixed = {RUN: entry.run, PART: entry.part, ATTEMPT: entry.attempt, FILES: entry.digest_of_files}
        commit = {COMMIT: entry.tags["git"].removesuffix("-dirty")} if "git" in entry.tags else {}
        tags = {name: value for name, value in {**ours, **fixed, **commit, **_above(parent)}.items() if value}
        for name in run.tags.keys() - tags.keys():
            if name.startswith("sp500."):
                ask(self._client.delete_tag, run.id, name)
        points = [point for point in entry.points if (point.key, point.step) not in stored]
        params = {name: value for name, value in entry.params.items() if name not in run.params}
        self._log(run.id, points, params, {**tags, SYNCED: digest})
        return len(points)

    def _log(self, run: str, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(point.key, point.value, point.time_ms, point.step) for point in points]
        settings = [Param(name, value) for name, value in params.items()]
        while len(metrics) > MOST_POINTS or len(settings) > MOST_PARAMS:
            ask(self._client.log_batch, run, metrics=metrics[:MOST_POINTS], params=settings[:MOST_PARAMS])
            metrics, settings = metrics[MOST_POINTS:], settings[MOST_PARAMS:]
        ended = [RunTag(name, value) for name, value in tags.items()]
        ask(self._client.log_batch, run, metrics=metrics, params=settings, tags=ended)

    def _points(self, run: Kept) -> dict[tuple[str, int], list[float]]:
        """Return all values of a run by metric and step."""
        values: dict[tuple[str, int], list[float]] = {}
        for key in run.metrics:
            for metric in ask(self._client.get_metric_history, run.id, key):
                values.setdefault((key, metric.step), []).append(metric.value)
        return values

    def _all(self) -> Iterator[Kept]:
        token = None
        while True:
            page = ask(self._client.search_runs, [self._experiment], max_results=1000, page_token=token)
            yield from (_read(run) for run in page if RUN in run.data.tags)
            token = page.token
            if not token:
                return


@dataclass
class Synced:
    """Result of a sync."""

    changes: list[Change] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Runs that MLflow does not hold as they are, and why."""


def sync(
    runs_dir: Path, address: Address, experiment: str, *, rates: RateTable | None = None, weights: bool = False
) -> Synced:
    """Mirror the runs of a folder.

    A run that cannot be read or is refused keeps no other. Once MLflow does not answer, the rest is missing, and the
    next sync does it. Raises ConfigError without the extra or for an experiment in MLflow's trash.
    """
    done, runs = Synced(), _runs(runs_dir)
    with _wait_for_lock(runs_dir):
        try:
            mirror = Mirror(address, experiment)
            while runs:
                _put(mirror, runs[0], done, rates=rates, weights=weights)
                del runs[0]
        except Unreachable as error:
            done.missing |= {run.name: str(error) for run in runs}
    return done


def _put(mirror: Mirror, run: Run, done: Synced, *, rates: RateTable | None, weights: bool) -> None:
    try:
        if run_entries := read_entries(run, rates=rates, weights=weights):
            done.changes.append(mirror.put(run_entries))
    except Unreachable:
        raise
    except (SP500Error, OSError) as error:  # an OSError of a run that is deleted meanwhile
        done.missing[run.name] = str(error)


def _runs(folder: Path) -> list[Run]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [Run(path) for path in paths if path.is_dir() and path.name != REPORT and not path.name.startswith(".")]


@contextmanager
def _wait_for_lock(folder: Path) -> Iterator[None]:
    """Wait until no other sync of the folder is at work: two at once would write points twice.

    A folder that is read-only, as the cluster's CronJob mounts it, has no lock; that runs one at a time.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def ask(call: Callable[..., T], *arguments: Any, seconds: int = SECONDS, **named: Any) -> T:
    """Return what MLflow answers.

    Raises Unreachable if it does not in time, or with a fault of its own, ResourcesError if it refuses.
    """
    with _explain_errors(), _limit_time(seconds):
        return call(*arguments, **named)


def _client(address: Address) -> Any:
    # Each of them is read when mlflow is imported, or at each request. What the user has set stays.
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
    with extra("mlflow"):
        from mlflow import MlflowClient
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if address.folder:
        try:
            address.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--uri {address.folder}: cannot make this folder ({error.strerror})") from error
    return ask(MlflowClient, address.uri)


def _find_experiment(client: Any, name: str, uri: str) -> Any:
    """Return the experiment or None. It is the first request, so a wrong address shows here."""
    try:
        existing = ask(client.get_experiment_by_name, name)
    except (ResourcesError, Unreachable) as error:
        if not FOREIGN.search(str(error)):
            raise
        raise ResourcesError(f"{error}. {_advise(uri, str(error))}") from error
    if existing is not None and not existing.experiment_id:  # an object of JSON that has other fields
        raise ResourcesError(f"MLflow: the answer holds no experiment. {_advise(uri, '')}")
    return existing


def _advise(uri: str, answer: str) -> str:
    """Return what to do about an answer that is not one of MLflow's API."""
    if "Invalid Host header" in answer:  # of MLflow 3.5 and later, for all names but localhost
        return f"Start MLflow's server with --allowed-hosts {urlsplit(uri).netloc.rpartition('@')[2]}"
    if "error code 401" in answer:
        return "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    return f"Expected an MLflow server at {mask(uri)}: set its address, with its path"


def _read(run: Any) -> Kept:
    data = run.data
    return Kept(run.info.run_id, run.info.status, dict(data.tags), dict(data.params), frozenset(data.metrics))


def _above(parent: str) -> dict[str, str]:
    return {PARENT: parent} if parent else {}


def _contradicts(run: Kept, stored: Mapping[tuple[str, int], Sequence[float]], entry: Entry) -> bool:
    """Return whether MLflow holds something that the entry lacks or has differently."""
    wanted = {(point.key, point.step): [point.value] for point in entry.points}
    return any(entry.params.get(name) != value for name, value in run.params.items()) or any(
        wanted.get(at) != values for at, values in stored.items()
    )


class _Expired(BaseException):
    """Not an Exception: after those mlflow waits and tries again."""


@contextmanager
def _limit_time(seconds: int) -> Iterator[None]:
    """End a call that lasts longer: mlflow has no limit for connecting to a database.

    The alarm repeats: Python ignores an error within a finalizer or a callback of the garbage collector.
    """

    def expire(*_: object) -> None:
        raise _Expired

    handler, timer = signal.signal(signal.SIGALRM, expire), signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    except _Expired:
        raise Unreachable(f"MLflow did not answer within {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def _explain_errors() -> Iterator[None]:
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        kind = Unreachable if error.get_http_status_code() >= 500 else ResourcesError
        raise kind(f"MLflow: {_short(str(error))}") from error
    except (requests.RequestException, OperationalError) as error:  # one of a database that is locked, or gone
        raise Unreachable(f"MLflow: {_short(str(error))}") from error
    except (SQLAlchemyError, CommandError) as error:  # of alembic, for revisions that it does not know
        raise ResourcesError(
            f"MLflow cannot use its database, of another version ({_short(str(error))}). Give another --uri"
        ) from error
    except ModuleNotFoundError as error:
        raise ResourcesError(
            f"MLflow keeps its artifacts where {error.name} is needed, which is not installed: pip install {error.name}"
        ) from error


def _short(text: str) -> str:
    lines: Iterable[str] = (line.strip() for line in str(mask(text)).splitlines())
    return next(filter(None, lines), "no reason given")[:300]
