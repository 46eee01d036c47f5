"""The queue on disk: one SQLite file that survives its writers, and in which each job is claimed once.

Each change is one transaction that takes SQLite's write lock at its beginning, and each step from state to state names
the state it starts from; so of two managers that would start a job, one finds that it is too late. The price: a
process that writes waits for the others, a millisecond each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from sp500.errors import ConfigError, ResourcesError, SP500Error
from sp500.jobs.queue.job import Job, NewJob, Notice, Use
from sp500.jobs.resources import Resources
from sp500.jobs.state import FINISHED, JobState, one_line

T = TypeVar("T")
# Version of the tables; a file of another one is refused.
VERSION = 3
WITHOUT_CURRENCY = 2
SECONDS_LOCKED = 30
TABLES = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    spec TEXT NOT NULL, target TEXT NOT NULL, request TEXT NOT NULL,
    project TEXT NOT NULL, priority INTEGER NOT NULL, queued_elsewhere INTEGER NOT NULL,
    cpus REAL NOT NULL, gpus REAL NOT NULL, memory REAL NOT NULL,
    seconds REAL, hourly REAL NOT NULL, retries INTEGER NOT NULL, deadline REAL, notify TEXT,
    state TEXT NOT NULL, reason TEXT NOT NULL, starts INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
    submitted INTEGER NOT NULL DEFAULT 0, stop_asked REAL, not_before REAL NOT NULL DEFAULT 0,
    devices TEXT NOT NULL DEFAULT '[]', exit_code INTEGER,
    created REAL NOT NULL, claimed REAL, placed REAL, started REAL, ended REAL,
    currency TEXT NOT NULL DEFAULT 'USD'
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE notices (
    event INTEGER PRIMARY KEY, url TEXT NOT NULL, message TEXT NOT NULL, at REAL NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, not_before REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE uses (
    id TEXT NOT NULL, project TEXT NOT NULL, begin REAL NOT NULL, finish REAL NOT NULL, hourly REAL NOT NULL
) STRICT;
CREATE INDEX uses_by_job ON uses (id);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, at REAL NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (id);
"""
# Columns of a row, without the documents, which are large.
COLUMNS = (
    "number, id, name, target, project, priority, queued_elsewhere, cpus, gpus, memory, seconds, hourly, retries,"
    " deadline, state, reason, starts, failures, submitted, stop_asked, not_before, devices, exit_code, created,"
    " claimed, placed, started, ended, notify, currency"
)
UNFINISHED = f"state NOT IN ({', '.join(repr(str(state)) for state in sorted(FINISHED))})"
# What its ended starts have cost.
PAID = "(SELECT coalesce(sum(hourly * (finish - begin)), 0) / 3600 FROM uses WHERE uses.id = jobs.id)"


class NoRoom(ResourcesError):
    """The disk of the queue is full."""


class Ledger:
    """All jobs of one state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the file and its tables if there are none.

        Raises ConfigError for a folder or a file that is not this user's own, and for a file that is damaged.
        """
        private_folder(self.path.parent)
        with self._open() as connection:
            self._create(connection)
        # A job's environment is in there.
        self.path.chmod(0o600)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise ConfigError(f"{self.path} was created by a newer sp500; upgrade this one, or use another --state-dir")
        if version == WITHOUT_CURRENCY:
            connection.execute("ALTER TABLE jobs ADD COLUMN currency TEXT NOT NULL DEFAULT 'USD'")
        elif 0 < version < VERSION:
            raise ConfigError(f"{self.path} is of an earlier sp500, which this one cannot read; move it away")
        if version == 0:
            for statement in TABLES.split(";"):
                connection.execute(statement)
        if version < VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[Entry]:
        """Run the block as one transaction: all of it or nothing. Nobody else writes meanwhile."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield Entry(connection)
            connection.execute("COMMIT")

    def jobs(self, ids: Sequence[str] = (), *, unfinished: bool = False) -> list[Job]:
        """Return these jobs, or all; oldest first."""
        return self._read(lambda connection: Entry(connection).jobs(ids, unfinished=unfinished))

    def stamp(self) -> tuple[int, ...]:
        """Return what changes with every commit of any process. It looks at two files and reads no row.

        The log next to the file comes and goes with readers, and is empty then.
        """
        main, log = self.path.stat(), self.path.with_name(f"{self.path.name}-wal")
        try:
            written = log.stat()
        except FileNotFoundError:
            return main.st_mtime_ns, main.st_size
        return (main.st_mtime_ns, main.st_size, *((written.st_mtime_ns, written.st_size) if written.st_size else ()))

    def busy(self) -> bool:
        """Return whether a manager has anything to do: an unfinished job, or an undelivered notice."""
        query = f"SELECT EXISTS (SELECT 1 FROM jobs WHERE {UNFINISHED}) OR EXISTS (SELECT 1 FROM notices)"  # noqa: S608
        return bool(self._read(lambda connection: connection.execute(query).fetchone()[0]))

    def document(self, id: str, column: str) -> dict[str, Any]:
        """Return a job's `spec` or its `request`."""
        assert column in {"spec", "request"}
        query = f"SELECT {column} FROM jobs WHERE id = ?"  # noqa: S608 - one of two words
        row = self._read(lambda connection: connection.execute(query, (id,)).fetchone())
        if row is None:
            raise ConfigError(f"job {id} was deleted")
        content: dict[str, Any] = json.loads(row[0])
        return content

    def events(self, id: str) -> list[tuple[float, JobState, str]]:
        """Return time, state and reason of each change, oldest first."""
        query = "SELECT at, state, reason FROM events WHERE id = ? ORDER BY number"
        rows = self._read(lambda connection: connection.execute(query, (id,)).fetchall())
        return [(at, JobState(state), reason) for at, state, reason in rows]

    def notices(self) -> list[Notice]:
        """Return the notices that are not delivered yet, oldest first."""
        query = "SELECT event, url, at, tries, not_before, message FROM notices ORDER BY event"
        rows = self._read(lambda connection: connection.execute(query).fetchall())
        return [Notice(number, url, at, tries, due, json.loads(text)) for number, url, at, tries, due, text in rows]

    def uses(self, since: float) -> list[Use]:
        """Return the uses of ended starts that lasted until after `since`."""
        return self._read(lambda connection: Entry(connection).uses(since))

    def _read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `look`, even if the disk is too full for the file that SQLite keeps next to it."""
        try:
            with self._open() as connection:
                return look(connection)
        except NoRoom:
            written = self.path.with_name(f"{self.path.name}-wal")
            if written.exists() and written.stat().st_size:  # changes that are not in the file itself
                raise
            with closing(
                sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            ) as connection:
                return look(connection)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=SECONDS_LOCKED, isolation_level=None)
            try:
                # Every commit is on the disk before it counts.
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
            finally:
                connection.close()  # rolls back what was not committed
        except sqlite3.DatabaseError as error:
            raise translate_error(self.path, error) from error


def private_folder(folder: Path) -> None:
    """Make a folder that only its user can enter. Raises ConfigError if another user owns it or may write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.stat()
    if stat.st_uid != os.getuid():
        raise ConfigError(
            f"--state-dir {folder} belongs to user {stat.st_uid}, who could run commands as you; give one of your own"
        )
    if stat.st_mode & 0o022:
        raise ConfigError(
            f"--state-dir {folder} may be written to by other users (mode {stat.st_mode & 0o777:o}): chmod 700 {folder}"
        )
    if stat.st_mode & 0o077:
        folder.chmod(0o700)


def translate_error(path: Path, error: sqlite3.DatabaseError) -> SP500Error:
    """Return the error to raise for one of SQLite, by its cause."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return ConfigError(
            f"{path} is damaged or not a queue ({error}). Move it away, and its jobs are forgotten:"
            f" mv {path} {path}.damaged"
        )
    if primary in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        free = shutil.disk_usage(path.parent).free
        return NoRoom(
            f"{path} cannot be written ({error}); its disk has {free / 2**20:.1f} MiB free. Make room there and try"
            " again: nothing of the queue is lost"
        )
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return ResourcesError(
            f"{path} was in use by another process for {SECONDS_LOCKED} s ({error}). Try again; `fuser {path}` shows"
            " which one"
        )
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        owner = f"user {path.stat().st_uid}" if path.exists() else "nobody yet"
        return ConfigError(
            f"{path} cannot be opened for writing by user {os.getuid()} ({error}); it belongs to {owner}. Give a"
            " --state-dir of your own"
        )
    return SP500Error(f"{path}: {error} (SQLite error {code})")


@dataclass(frozen=True)
class Entry:
    """Reads and writes inside one transaction."""

    connection: sqlite3.Connection

    def jobs(self, ids: Sequence[str] = (), *, unfinished: bool = False) -> list[Job]:
        """Return these jobs, or all; oldest first."""
        where, values = ["1"], list(ids)
        if ids:
            where.append(f"id IN ({', '.join('?' * len(ids))})")
        if unfinished:
            where.append(UNFINISHED)
        query = f"SELECT {COLUMNS}, {PAID} FROM jobs WHERE {' AND '.join(where)} ORDER BY number"  # noqa: S608 - our own words
        return [_job(row) for row in self.connection.execute(query, values)]

    def uses(self, since: float) -> list[Use]:
        """Return the uses of ended starts that lasted until after `since`."""
        rows = self.connection.execute("SELECT id, project, begin, finish, hourly FROM uses WHERE finish > ?", (since,))
        return [Use(*row) for row in rows]

    def add(self, jobs: Iterable[NewJob], at: float) -> None:
        """Queue jobs. Raises ConfigError for an id that is there already."""
        for job in jobs:
            row = asdict(job) | asdict(job.demand)
            del row["demand"]
            row |= {key: json.dumps(row[key]) for key in ("spec", "target", "request")}
            row |= {"state": str(JobState.QUEUED), "reason": "just submitted", "created": at}
            names = ", ".join(row)
            try:
                self.connection.execute(
                    f"INSERT INTO jobs ({names}) VALUES ({', '.join('?' * len(row))})",  # noqa: S608 - our own words
                    list(row.values()),
                )
            except sqlite3.IntegrityError as error:
                raise ConfigError(f"duplicate job id {job.id}; submit again to get a new one") from error
            self._event(job.id, at, JobState.QUEUED, "just submitted", notify=True)

    def change(self, job: Job, at: float, **changes: object) -> bool:
        """Change a job as it was seen; False, and no change, if its state or its start is another by now."""
        if "reason" in changes:
            changes["reason"] = one_line(str(changes["reason"]))
        values = {key: json.dumps(value) if key == "devices" else value for key, value in changes.items()}
        assignments = ", ".join(f"{key} = ?" for key in values)
        done = self.connection.execute(
            f"UPDATE jobs SET {assignments} WHERE id = ? AND state = ? AND starts = ?",  # noqa: S608 - our own words
            [*values.values(), job.id, str(job.state), job.starts],
        )
        state, reason = changes.get("state", job.state), changes.get("reason", job.reason)
        # Why a job waits for its turn changes with every other job, and is not part of this one's history.
        is_history = state != JobState.QUEUED or job.state != JobState.QUEUED
        is_new = state != job.state or _words(str(reason)) != _words(job.reason)
        if done.rowcount and is_history and is_new:
            self._event(job.id, at, JobState(str(state)), str(reason), notify=state != job.state)
        return bool(done.rowcount)

    def release(self, job: Job, at: float) -> None:
        """Write down what the present start used until `at`."""
        if (since := job.held_since) is not None:
            use = (job.id, job.project, since, max(at, since), job.hourly)
            self.connection.execute("INSERT INTO uses VALUES (?, ?, ?, ?, ?)", use)

    def ask_to_stop(self, id: str, at: float) -> None:
        """Record that a job should end. The first request counts."""
        self.connection.execute("UPDATE jobs SET stop_asked = coalesce(stop_asked, ?) WHERE id = ?", (at, id))

    def remove(self, id: str) -> None:
        """Forget a job, its events, and what was not delivered of them."""
        self.connection.execute("DELETE FROM notices WHERE event IN (SELECT number FROM events WHERE id = ?)", (id,))
        self.connection.execute("DELETE FROM jobs WHERE id = ?", (id,))
        self.connection.execute("DELETE FROM events WHERE id = ?", (id,))

    def remove_notice(self, notice: Notice) -> None:
        """Forget a notice."""
        self.connection.execute("DELETE FROM notices WHERE event = ?", (notice.number,))

    def put_off(self, notice: Notice, until: float) -> None:
        """Try a notice again at a later time."""
        values = (until, notice.number)
        self.connection.execute("UPDATE notices SET tries = tries + 1, not_before = ? WHERE event = ?", values)

    def _event(self, id: str, at: float, state: JobState, reason: str, *, notify: bool) -> None:
        event = (id, at, str(state), reason)
        done = self.connection.execute("INSERT INTO events (id, at, state, reason) VALUES (?, ?, ?, ?)", event)
        row = self.connection.execute("SELECT notify, name, project FROM jobs WHERE id = ?", (id,)).fetchone()
        if notify and row[0]:
            fields = {"number": done.lastrowid, "id": id, "name": row[1], "project": row[2]}
            message = json.dumps(fields | {"state": str(state), "reason": reason, "at": at})
            values = (done.lastrowid, row[0], message, at)
            self.connection.execute("INSERT INTO notices (event, url, message, at) VALUES (?, ?, ?, ?)", values)


def _words(reason: str) -> set[str]:
    """Return a reason's words without its numbers: a second pod that waits for the same is not news."""
    return {word.removesuffix("s") for word in re.findall(r"[^\W\d_]+", reason)}


def _job(row: Sequence[object]) -> Job:
    fields = dict(zip([*COLUMNS.split(", "), "paid"], row, strict=True))
    demand = Resources(*(fields.pop(name) for name in ("cpus", "gpus", "memory")))  # type: ignore[arg-type]
    fields |= {name: bool(fields[name]) for name in ("queued_elsewhere", "submitted")}
    target, devices = json.loads(str(fields.pop("target"))), tuple(json.loads(str(fields.pop("devices"))))
    return Job(**fields | {"state": JobState(str(fields["state"]))}, demand=demand, target=target, devices=devices)  # type: ignore[arg-type]
