"""Run folders: atomic writes, checked names, one writer at a time.

    runs/<name>/config.yaml      effective settings, re-runnable with --config
    runs/<name>/started.json     what is known of the run at its start: its record, if a kill leaves no other
    runs/<name>/epochs.jsonl     one line per epoch, flushed
    runs/<name>/record.json      written last: its existence means that the run ended

The lock is the kernel's (flock), so a killed holder frees it; a file next to it has the holder's name for the message.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from sp500.config import RUN_NAME
from sp500.errors import ConfigError, DiskError, RunExists, RunLocked
from sp500.machine.disk import append_durably, explain_errors, write_atomic
from sp500.machine.locks import acquire, try_lock
from sp500.runs import checksums
from sp500.runs.details import Importance
from sp500.runs.record import EpochMetrics, PlannedSearch, RunRecord

# What an attempt leaves that ended before its first epoch, trial or fold.
BEGINNING = {"config.yaml", "started.json", "record.json", "source", ".lock", ".holder"}
# The report's folder among the runs.
REPORT = "report"
IMPORTANCE = "importance.json"
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Run:
    """One run's folder. Open it through `RunStore.open`, which holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def record(self) -> RunRecord | None:
        """Read the record; None while the run has not ended. A damaged one raises ConfigError that names its file."""
        return self._read("record.json")

    def write_start(self, record: RunRecord) -> None:
        """Write what the record would be if the run were killed now."""
        write_atomic(self.path / "started.json", checksums.seal(record))

    def start_record(self) -> RunRecord | None:
        """Read what `write_start` kept; None for a run that has not begun, or began under an older version."""
        return self._read("started.json")

    def write_cluster(self, cluster: dict[str, float], simulated_nodes: int | None = None) -> None:
        """Write the resources of the run as soon as they are known, so that a killed run has its price."""
        if begun := self.start_record():
            nodes = begun.machine.simulated_nodes if simulated_nodes is None else simulated_nodes
            facts = {"cluster": cluster, "simulated_nodes": nodes}
            self.write_start(begun.model_copy(update={"machine": begun.machine.model_copy(update=facts)}))

    def write_plan(self, trials: int) -> None:
        """Write how many configs a search is about to try, and that it begins now."""
        if begun := self.start_record():
            self.write_start(begun.model_copy(update={"planned": PlannedSearch(trials=trials, at=datetime.now(UTC))}))

    def attempt_without_record(self, done: RunRecord | None = None) -> RunRecord | None:
        """Return the last attempt, up to the last file that it wrote, if it left no record: killed or still running.

        `done` is the record, if it was read already.
        """
        begun, done = self.start_record(), done or self.record()
        if begun is None or (done is not None and done.finished >= begun.started):
            return None
        # Files of epochs, trials, folds and checkpoints; the hidden ones are of the lock, which others touch as well.
        times = [path.stat().st_mtime for path in self.path.glob("[!.]*")]
        finished = max(datetime.fromtimestamp(max(times), UTC), begun.started)
        total = (finished - begun.started).total_seconds()
        seconds = begun.seconds.model_copy(update={"setup": total, "total": total})
        return begun.model_copy(update={"finished": finished, "seconds": seconds})

    def has_result(self) -> bool:
        """Return whether the run has an epoch, a trial, a fold or a record that is not of a failure."""
        if {path.name for path in self.path.iterdir()} - BEGINNING:
            return True
        return (record := self.record()) is None or record.status != "failed"

    def clear(self) -> None:
        """Delete what is in the folder, but for its lock. For the holder of the lock."""
        for path in sorted(self.path.iterdir()):
            if path.name in {".lock", ".holder"}:
                continue
            with explain_errors(path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def spent_seconds(self) -> float:
        """Return the seconds of all attempts at this run so far."""
        last = self.attempt_without_record() or self.record()
        return last.seconds.total + last.seconds.earlier if last else 0.0

    def is_open(self) -> bool:
        """Return whether a process writes the run now. Looks at its lock for an instant, and changes nothing."""
        try:
            file = (self.path / ".lock").open("rb")
        except OSError:
            return False
        with file:
            try:
                return not try_lock(file.fileno(), shared=True)
            except OSError:  # without locks no process of ours writes there
                return False

    def _read(self, file: str) -> RunRecord | None:
        path = self.path / file
        try:
            record = RunRecord.model_validate_json(checksums.unseal(path.read_bytes()))
            if not RUN_NAME.fullmatch(record.name):
                raise ValueError(f"its name {record.name!r:.80} is not valid")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:  # pydantic's and a decoder's errors are such
            raise ConfigError(f"{path} is not a run record ({_first_line(error)}). Move its folder away") from error
        # A folder that was renamed, or copied, is the run of its own name.
        return record.model_copy(update={"name": self.name}) if RUN_NAME.fullmatch(self.name) else record

    def write_config(self, settings: Mapping[str, object]) -> None:
        """Write the effective settings, re-runnable with --config."""
        write_atomic(self.path / "config.yaml", yaml.safe_dump(settings, sort_keys=False))

    def write_epochs(self, epochs: Iterable[EpochMetrics]) -> None:
        """Replace the epoch lines, as when a resumed run goes back to its last checkpoint."""
        write_atomic(self.path / "epochs.jsonl", "".join(epoch.model_dump_json() + "\n" for epoch in epochs))

    def append_epoch(self, epoch: EpochMetrics) -> None:
        """Add one epoch's line."""
        append_durably(self.path / "epochs.jsonl", epoch.model_dump_json())

    def epochs(self) -> list[EpochMetrics]:
        """Read the epochs, each once: of one that a resumed run did again the last; no line cut off by a kill."""
        path = self.path / "epochs.jsonl"
        epochs: dict[int, EpochMetrics] = {}
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        for number, line in enumerate(lines, 1):
            try:
                epoch = EpochMetrics.model_validate_json(line)
            except ValueError as error:
                raise ConfigError(
                    f"{path}, line {number} is damaged ({_first_line(error)}). Move its folder away"
                ) from error
            epochs[epoch.epoch] = epoch
        return [epochs[number] for number in sorted(epochs)]

    def write_importance(self, importance: Importance) -> None:
        """Write what the model's inputs are worth, next to the record, which stays as it is."""
        write_atomic(self.path / IMPORTANCE, json.dumps(importance, indent=1) + "\n")

    def importance(self) -> Importance | None:
        """Read what `write_importance` wrote; None if it was never asked for. Raises ConfigError for a damaged file."""
        path = self.path / IMPORTANCE
        try:
            data = path.read_bytes()
            return TypeAdapter(Importance).validate_json(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else _first_line(error)
            raise ConfigError(f"{path} cannot be used ({reason}); delete it") from error

    @contextmanager
    def following(self, on_epoch: Callable[[EpochMetrics], None]) -> Iterator[None]:
        """Pass on each epoch that another process writes, while the block runs."""
        done = threading.Event()

        def watch() -> None:
            """Read new epochs three times a second, and once more at the end."""
            reported = {epoch.epoch for epoch in self.epochs()}
            while True:
                last = done.wait(0.3)
                for epoch in self.epochs():
                    if epoch.epoch not in reported:
                        reported.add(epoch.epoch)
                        on_epoch(epoch)
                if last:
                    return

        thread = threading.Thread(target=watch, name="follow-epochs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def write_record(self, record: RunRecord) -> None:
        """Write the record, which ends the run."""
        write_atomic(self.path / "record.json", checksums.seal(record))


class RunStore:
    """All runs under one folder."""

    def __init__(self, root: Path) -> None:
        # Ray's workers run in folders of their own: a relative path would be another place there.
        if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):  # a Path keeps one of a URI's two slashes
            raise ConfigError(f"{root} is not a folder; a run's lock and ledger need a file system: mount the bucket")
        self.root = root.expanduser().resolve()

    @contextmanager
    def open(self, name: str, *, resume: bool = False, overwrite: bool = False) -> Iterator[Run]:
        """Open one run for writing and hold its lock, making its folder if need be.

        A run that failed before its first epoch, trial or fold does not keep its name. `overwrite` deletes any other.
        Raises ConfigError for a name that is none and for another user's folder, RunExists for a name taken (without
        `resume`), RunLocked when another process is writing it.
        """
        run = self.run(name)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"io.save_dir {self.root}: cannot make a folder there ({error.strerror})") from error
        lock = FileLock(run.path / ".lock", timeout=0.3)  # longer than `is_open` looks
        try:
            held = acquire(lock)
        except Timeout:
            raise RunLocked(f"run {name!r} is being written by {_holder(run.path)}; choose another --name") from None
        except DiskError as error:
            if error.errno not in CLOSED:
                raise
            raise ConfigError(
                f"{run.path}: cannot be written ({error.strerror}). Choose another --name or --runs-dir"
            ) from error
        with held:
            taken = not resume and (run.path / "config.yaml").exists()
            if taken and not overwrite and run.has_result():
                raise RunExists(_taken(run))
            _write_holder(run.path / ".holder")
            _check_owner(run.path)
            if taken:
                run.clear()
            yield run

    def remove(self, name: str) -> None:
        """Delete a run. Raises what `open` does."""
        with self.open(name, resume=True) as run, explain_errors(run.path):
            shutil.rmtree(run.path)

    def scan(self, trim: Callable[[RunRecord], RunRecord] = lambda record: record) -> Runs:
        """Read all runs of the folder, and keep of each record what `trim` returns.

        One that cannot be read is listed with its reason and ends nothing.
        """
        records, unended, damaged = [], [], []
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else []:
            run = Run(path)
            if path.name == REPORT or path.name.startswith(".") or not path.is_dir():
                continue
            try:
                record = run.record()
                attempt = run.attempt_without_record(record)
            except ConfigError as error:
                damaged.append(str(error))
                continue
            records += [trim(record)] if record else []
            unended += [trim(attempt)] if attempt else []
        return Runs(
            tuple(sorted(records, key=lambda record: record.finished)),
            tuple(sorted(unended, key=lambda record: record.started)),
            tuple(damaged),
        )

    def record(self, name: str) -> RunRecord | None:
        """Read one run's record; None while it has not ended. Raises ConfigError for a name that is not valid."""
        return self.run(name).record()

    def epochs(self, name: str) -> list[EpochMetrics]:
        """Read epoch lines of one run. Raises ConfigError for a name that is not valid."""
        return self.run(name).epochs()

    def run(self, name: str) -> Run:
        """Return a run that may not be there, and is not held. Raises ConfigError for a name that is not valid."""
        # No path is made of a name before it is checked: `../x` would lead out of the folder.
        if not RUN_NAME.fullmatch(name) or name == REPORT:
            raise ConfigError(f"run name {name!r:.80} must match {RUN_NAME.pattern} and not be {REPORT!r}")
        return Run(self.root / name)


@dataclass(frozen=True)
class Runs:
    """The runs of a folder."""

    records: tuple[RunRecord, ...]
    """Ended runs, oldest first."""
    unended: tuple[RunRecord, ...]
    """Runs whose last attempt has left no record, as `Run.attempt_without_record` gives them, oldest first."""
    damaged: tuple[str, ...]
    """For each run that cannot be read the file and what is wrong with it."""


def _first_line(error: ValueError) -> str:
    """Return what is wrong, in one line: of pydantic's errors the first one."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return str(error).splitlines()[0]


def _write_holder(path: Path) -> None:
    """Write who holds the run into a new file: another user may have made the one there, as a link."""
    with explain_errors(path):
        path.unlink(missing_ok=True)
        with path.open("x") as file:
            file.write(f"process {os.getpid()} on {socket.gethostname()}")


def _check_owner(path: Path) -> None:
    """Raise ConfigError for a run's folder, or a link to it, of another user, who could lead what is written elsewhere.

    The holder's file was written just now: a file system that names other users than this machine has one for it too.
    """
    mine = (path / ".holder").stat().st_uid
    for owner in {path.lstat().st_uid, path.stat().st_uid} - {mine}:
        raise ConfigError(
            f"{path} belongs to user {owner}, and this is user {mine}. Choose another --name or --runs-dir, or copy it"
        )


def _holder(path: Path) -> str:
    try:
        return (path / ".holder").read_text()
    except FileNotFoundError:
        return "another process"


def _taken(run: Run) -> str:
    """Return the message that a run has this name already, and what to do."""
    record, folder = run.record(), run.path.parent
    if record is None:
        return f"run {run.name!r} exists in {folder}: --resume continues it, another --name starts a new one"
    if record.status == "ok":
        return f"run {run.name!r} has ended, in {folder}: --resume shows its result, another --name starts a new one"
    return (
        f"run {run.name!r} ended as {record.status}, in {folder}: --resume tries it again with the same settings; for "
        "other settings choose another --name, or --overwrite"
    )
