"""A run out of its archive, verified, into a folder of runs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sp500.errors import CheckpointError, ConfigError, DiskError, RunExists, Unreachable
from sp500.machine.disk import FULL, disk_error, explain_errors, make_staging_folder, sync_folder
from sp500.runs import versions
from sp500.runs.archive.layout import RECORD, UNANSWERED, Archived, Listing, by_folder, versions_in
from sp500.runs.store import Run, RunStore
from sp500.storage import Entry

log = logging.getLogger(__name__)

GROWING = ("trials.jsonl", "rungs.jsonl", "asked.jsonl", "folds.jsonl")
"""Files of results that only grow."""


@dataclass(frozen=True)
class Fetched:
    """Names of the fetched files and of versions. `damaged`: what is wrong with each version left out."""

    files: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def fetch(store: RunStore, name: str, uri: str) -> Fetched:
    """Copy a run, ended or not, into a folder of runs; nothing if the one there is as new.

    Where there is no run of that name it appears at once, under a lock of its own. Raises RunExists for a run of other
    settings there, ConfigError if the archive has no such run, CheckpointError that names a damaged file,
    Unreachable for an archive that does not answer.
    """
    local = store.run(name)
    with _answering(uri, local.path):
        archived = Archived(uri, local)
        listing = archived.listing()
        if listing is None:
            raise ConfigError(f"{archived.uri} is not a run: it has no archive.json. Check the name and the address")
        entries = archived.entries()
        if not local.path.exists():
            with make_staging_folder(store.root, f".{name}.fetch") as staged:
                fetched = _download(archived, listing, entries, staged, versions_in(entries))
                _finish(staged)
                if _rename(staged, local.path):
                    return fetched
        with store.open(name, resume=True) as run:
            _check_same(run, listing)
            return _merge(archived, listing, entries, run)


def catch_up(uri: str, run: Run, fingerprint: str, *, resume: bool) -> None:
    """Fetch what the archive has of a run that is about to start, if that is newer.

    Raises RunExists for a new run whose name the archive has, ConfigError for a run of other settings. An archive that
    does not answer is a warning, but Unreachable if the run is not here either, so that it does not start over.
    """
    here = (run.path / "config.yaml").exists()
    try:
        archived = Archived(uri, run)
        listing = archived.listing()
        if listing is None:
            return
        if not resume:
            raise RunExists(
                f"run {run.name!r} exists in the archive {uri}: --resume continues it, another --name starts a new one"
            )
        if listing.fingerprint != fingerprint:
            raise ConfigError(
                f"run {run.name!r} in the archive {uri} has other settings or files ({listing.fingerprint}, not "
                f"{fingerprint}). Give the same ones, or fetch it first: sp500 runs fetch {run.name} --from {uri}"
            )
        fetched = _merge(archived, listing, archived.entries(), run)
    except ConfigError:
        raise
    except UNANSWERED as error:
        if resume and not here:
            raise Unreachable(
                f"--resume: run {run.name!r} is not here, and its archive {uri} fails: {error}"
            ) from error
        log.warning("archive %s: %s. The run continues with what is here", uri, error)
        return
    if fetched.versions or fetched.files:
        log.warning("archive %s: run %s is fetched from there, as it is newer", uri, run.name)


def _rename(staged: Path, target: Path) -> bool:
    """Return whether the staged folder has become the run; not if another process has made one meanwhile."""
    try:
        staged.rename(target)
    except OSError as error:
        if not target.exists():
            raise disk_error(target, error) from error
        return False
    sync_folder(target.parent)
    return True


@contextmanager
def _answering(uri: str, local: Path) -> Iterator[None]:
    try:
        yield
    except (ConfigError, CheckpointError, DiskError):
        raise
    except UNANSWERED as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise disk_error(Path(error.filename or local), error) from error
        raise Unreachable(f"archive {uri}: {error}") from error


def _check_same(run: Run, listing: Listing) -> None:
    begun = run.start_record() or run.record()
    if (begun and begun.fingerprint != listing.fingerprint) or (not begun and (run.path / "config.yaml").exists()):
        raise RunExists(f"{run.path} is a run of other settings than {listing.run!r} in the archive. Move it away")


def _merge(archived: Archived, listing: Listing, entries: dict[str, Entry], run: Run) -> Fetched:
    """Fetch what the archive has and the run lacks, if the archive is newer; the newest version last."""
    names = versions_in(entries)
    if not _is_ahead(run, entries, names):
        return Fetched()
    for rest in run.path.glob(".fetch-*"):  # of killed ones: the run's lock lets one fetch at a time
        shutil.rmtree(rest, ignore_errors=True)
    with make_staging_folder(run.path, ".fetch") as staged:
        missing = {name for name in names if not _is_whole(run.path / name)}
        fetched = _download(archived, listing, entries, staged, missing)
        folders = by_folder(set(fetched.versions))
        versions_last = [f"{folder}/{versions.name(version)}" for folder, group in folders.items() for version in group]
        for name in sorted(fetched.files, key=lambda name: name == RECORD):
            if name == RECORD:
                _move(staged, run.path, versions_last)
            _move(staged, run.path, [name])
        _move(staged, run.path, [name for name in versions_last if (staged / name).exists()])
    _finish(run.path)
    return fetched


def _move(staged: Path, run: Path, names: list[str]) -> None:
    for name in names:
        target = run / name
        with explain_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            (staged / name).replace(target)


def _is_ahead(run: Run, entries: dict[str, Entry], names: set[str]) -> bool:
    """Return whether the archive has a newer version, a record that the run lacks, or more results."""
    if not (run.path / "config.yaml").exists() or (RECORD in entries and not (run.path / RECORD).exists()):
        return True
    for folder, remote in by_folder(names).items():
        local = versions.of(run.path / folder)
        if not local or remote[-1] > local[-1]:
            return True
        if remote[-1] == local[-1] and not _is_whole(run.path / folder / versions.name(local[-1])):
            return True
    sizes = {name: (run.path / name).stat().st_size if (run.path / name).exists() else 0 for name in GROWING}
    return any(name in entries and entries[name].size > size for name, size in sizes.items())


def _is_whole(version: Path) -> bool:
    try:
        versions.check(version)
    except versions.DAMAGE:
        return False
    return True


def _download(
    archived: Archived, listing: Listing, entries: dict[str, Entry], folder: Path, names: set[str]
) -> Fetched:
    """Fetch the run's files and these versions. Raises CheckpointError for a damaged file of the run."""
    files, whole, damaged = [], [], []
    for name in listing.files:
        if name in entries:
            _download_file(archived, listing, name, folder, entries[name].modified)
            files.append(name)
        elif RECORD in entries:
            raise CheckpointError(f"{archived.uri}/{name} is missing: {archived.uri} is damaged")
    for name in sorted(names):
        if f"{name}/{versions.MANIFEST}" in entries:
            try:
                _download_version(archived, name, folder, entries)
                whole.append(name)
            except versions.DAMAGE as error:
                shutil.rmtree(folder / name, ignore_errors=True)
                damaged.append(str(error))
                log.warning("archive %s: version %s is damaged and left out: %s", archived.uri, name, error)
    if damaged and not whole:
        raise CheckpointError(f"{archived.uri}: no version of the checkpoint is whole: {'; '.join(damaged)}")
    return Fetched(tuple(files), tuple(whole), tuple(damaged))


def _download_file(archived: Archived, listing: Listing, name: str, folder: Path, modified: datetime) -> None:
    digest = archived.folder.download(name, folder / name)
    if digest not in listing.files[name]:
        again = archived.listing()  # a program that replaces the file lists it first
        if again is None or digest not in again.files.get(name, ()):
            raise CheckpointError(f"{archived.uri}/{name} is damaged: it does not match its checksum")
    _set_time(folder / name, modified.timestamp())


def _download_version(archived: Archived, name: str, folder: Path, entries: dict[str, Entry]) -> None:
    """Fetch a version. Raises one of versions.DAMAGE, naming the damaged file."""
    manifest = archived.manifest(name)
    for file, expected in manifest.files.items():
        if archived.folder.download(f"{name}/{file}", folder / name / file) != expected:
            raise ValueError(f"{archived.uri}/{name}/{file} does not match its checksum")
    (folder / name / versions.MANIFEST).write_text(manifest.dump())
    written = entries[f"{name}/{versions.MANIFEST}"].modified.timestamp()
    _set_time(folder / name / versions.MANIFEST, written)
    _set_time(folder / name, written)


def _finish(run: Path) -> None:
    """Make the links last and best, and give folders the time of the newest file in them: a run's seconds end then."""
    for folder in [*run.glob("checkpoints*"), *run.glob("*/checkpoints*")]:
        if local := versions.of(folder):
            versions.link(folder / "last", local[-1])
            with suppress(*versions.DAMAGE):
                if best := versions.read(folder / versions.name(local[-1])).best:
                    versions.link(folder / "best", best)
    for folder in (path for path in run.glob("[!.]*") if path.is_dir()):
        times = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
        _set_time(folder, max(times, default=folder.stat().st_mtime))


def _set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))
