"""One sync: every run of a folder, as far as MLflow answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from sp500.errors import SP500Error, Unreachable
from sp500.runs.cost import RateTable
from sp500.runs.store import REPORT, Run
from sp500.tracking import entries
from sp500.tracking.address import Address
from sp500.tracking.mirror import Change, Mirror

LOCK = ".mlflow.lock"


@dataclass
class Synced:
    """What a sync did."""

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
        if run_entries := entries.read_entries(run, rates=rates, weights=weights):
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
