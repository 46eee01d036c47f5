"""The queue on disk: one SQLite file that survives whoever writes it, and in which every job changes hands once.

Each change is one transaction that takes SQLite's write lock at its beginning, and each step from state to state names
the state it starts from; so of two managers that would start a job, one finds that it is too late. The price: whoever
writes waits for the others, a millisecond each.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sp500.errors import ConfigError
from sp500.jobs.document import Document
from sp500.jobs.queue.job import Job, NewJob, Notice, Use
from sp500.jobs.queue.resources import Resources
from sp500.jobs.state import FINISHED, JobState

# Version of the tables; a file of a later one is refused.
VERSION = 1
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
    created REAL NOT NULL, claimed REAL, started REAL, ended REAL
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
# What a row tells, without the documents, which are large.
COLUMNS = (
    "number, id, name, target, project, priority, queued_elsewhere, cpus, gpus, memory, seconds, hourly, retries,"
    " deadline, state, reason, starts, failures, submitted, stop_asked, not_before, devices, exit_code, created,"
    " claimed, started, ended, notify"
)
UNFINISHED = f"state NOT IN ({', '.join(repr(str(state)) for state in sorted(FINISHED))})"
# What its ended starts have cost.
PAID = "(SELECT coalesce(sum(hourly * (finish - begin)), 0) / 3600 FROM uses WHERE uses.id = jobs.id)"


class Ledger:
    """All jobs of one state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the file and its tables where there are none. Raises ConfigError for one that is no queue of ours."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with self._open() as connection:
                self._create(connection)
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{self.path} is no queue that can be used ({error}); move it away") from error
        # A job's environment is in there.
        self.path.chmod(0o600)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise ConfigError(f"{self.path} is of a later sp500; upgrade this one, or take another --state-dir")
        if version == 0:
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[Entry]:
        """One transaction: all of the block or nothing. Nobody else writes meanwhile."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield Entry(connection)
            connection.execute("COMMIT")

    def jobs(self, ids: Sequence[str] = (), *, unfinished: bool = False) -> list[Job]:
        """These jobs, or all; oldest first."""
        with self._open() as connection:
            return Entry(connection).jobs(ids, unfinished=unfinished)

    def busy(self) -> bool:
        """Whether a manager has anything to do: an unfinished job, or a notice that nobody took."""
        query = f"SELECT EXISTS (SELECT 1 FROM jobs WHERE {UNFINISHED}) OR EXISTS (SELECT 1 FROM notices)"  # noqa: S608
        with self._open() as connection:
            return bool(connection.execute(query).fetchone()[0])

    def document(self, id: str, column: str) -> Document:
        """A job's `spec` or its `request`."""
        assert column in {"spec", "request"}
        with self._open() as connection:
            row = connection.execute(f"SELECT {column} FROM jobs WHERE id = ?", (id,)).fetchone()  # noqa: S608
        if row is None:
            raise ConfigError(f"job {id} was deleted")
        found: Document = json.loads(row[0])
        return found

    def events(self, id: str) -> list[tuple[float, JobState, str]]:
        """Time, state and reason of each change, oldest first."""
        with self._open() as connection:
            rows = connection.execute("SELECT at, state, reason FROM events WHERE id = ? ORDER BY number", (id,))
            return [(at, JobState(state), reason) for at, state, reason in rows]

    def notices(self) -> list[Notice]:
        """What receivers have not taken yet, oldest first."""
        with self._open() as connection:
            rows = connection.execute("SELECT event, url, at, tries, not_before, message FROM notices ORDER BY event")
            return [Notice(number, url, at, tries, due, json.loads(text)) for number, url, at, tries, due, text in rows]

    def uses(self, since: float) -> list[Use]:
        """What ended starts have used that lasted until after `since`."""
        with self._open() as connection:
            return Entry(connection).uses(since)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=SECONDS_LOCKED, isolation_level=None)
        try:
            # Every commit is on the disk before it counts.
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        finally:
            connection.close()  # rolls back what was not committed


@dataclass(frozen=True)
class Entry:
    """What may be done inside one transaction."""

    connection: sqlite3.Connection

    def jobs(self, ids: Sequence[str] = (), *, unfinished: bool = False) -> list[Job]:
        """These jobs, or all; oldest first."""
        where, values = ["1"], list(ids)
        if ids:
            where.append(f"id IN ({', '.join('?' * len(ids))})")
        if unfinished:
            where.append(UNFINISHED)
        query = f"SELECT {COLUMNS}, {PAID} FROM jobs WHERE {' AND '.join(where)} ORDER BY number"  # noqa: S608 - our own words
        return [_job(row) for row in self.connection.execute(query, values)]

    def uses(self, since: float) -> list[Use]:
        """What ended starts have used that lasted until after `since`."""
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
                raise ConfigError(f"job {job.id} is there already; submit it anew") from error
            self._event(job.id, at, JobState.QUEUED, "just submitted", notify=True)

    def change(self, job: Job, at: float, **changes: object) -> bool:
        """Change a job as it was seen; False, and no change, where its state or its start is another by now."""
        values = {key: json.dumps(value) if key == "devices" else value for key, value in changes.items()}
        assignments = ", ".join(f"{key} = ?" for key in values)
        done = self.connection.execute(
            f"UPDATE jobs SET {assignments} WHERE id = ? AND state = ? AND starts = ?",  # noqa: S608 - our own words
            [*values.values(), job.id, str(job.state), job.starts],
        )
        state, reason = changes.get("state", job.state), changes.get("reason", job.reason)
        # Why a job waits for its turn changes with every other job, and is no history of this one.
        told = state != JobState.QUEUED or job.state != JobState.QUEUED
        if done.rowcount and told and (state, reason) != (job.state, job.reason):
            self._event(job.id, at, JobState(str(state)), str(reason), notify=state != job.state)
        return bool(done.rowcount)

    def release(self, job: Job, at: float) -> None:
        """Write down what the present start used until `at`."""
        if (since := job.held_since) is not None:
            use = (job.id, job.project, since, max(at, since), job.hourly)
            self.connection.execute("INSERT INTO uses VALUES (?, ?, ?, ?, ?)", use)

    def ask_to_stop(self, id: str, at: float) -> None:
        """Leave the word that a job shall end; the first one counts."""
        self.connection.execute("UPDATE jobs SET stop_asked = coalesce(stop_asked, ?) WHERE id = ?", (at, id))

    def remove(self, id: str) -> None:
        """Forget a job and its events."""
        self.connection.execute("DELETE FROM jobs WHERE id = ?", (id,))
        self.connection.execute("DELETE FROM events WHERE id = ?", (id,))

    def delivered(self, notice: Notice) -> None:
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
            told = {"number": done.lastrowid, "id": id, "name": row[1], "project": row[2]}
            message = json.dumps(told | {"state": str(state), "reason": reason, "at": at})
            values = (done.lastrowid, row[0], message, at)
            self.connection.execute("INSERT INTO notices (event, url, message, at) VALUES (?, ?, ?, ?)", values)


def _job(row: Sequence[object]) -> Job:
    found = dict(zip([*COLUMNS.split(", "), "paid"], row, strict=True))
    demand = Resources(*(found.pop(name) for name in ("cpus", "gpus", "memory")))  # type: ignore[arg-type]
    found |= {name: bool(found[name]) for name in ("queued_elsewhere", "submitted")}
    target, devices = json.loads(str(found.pop("target"))), tuple(json.loads(str(found.pop("devices"))))
    return Job(**found | {"state": JobState(str(found["state"]))}, demand=demand, target=target, devices=devices)  # type: ignore[arg-type]
