"""The thread that copies a run to its archive while the run continues.

It looks at the run's folder, so what trains knows nothing of it, on Ray either: the process that holds the run copies
what rank 0 writes. Training never waits for it. A version is held by hard links while it is copied, so that it may be
removed from the run meanwhile. Only the end of the run waits, and an archive that cannot be reached ends in a warning.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sp500.errors import RunExists
from sp500.runs import checksums, versions
from sp500.runs.archive.layout import LISTING, RECORD, UNANSWERED, Archived, Listing, by_folder, versions_in
from sp500.runs.store import Run
from sp500.runs.versions import Manifest, Version

log = logging.getLogger(__name__)

INTERVAL_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
LAST_PAUSE_SECONDS = 2.0
"""Between the two tries at the end of the run; an archive that has failed before is tried once."""
INTERRUPTED_SECONDS = 10.0
"""How long an interrupted run waits: Kubernetes gives a pod 30 s between SIGTERM and SIGKILL."""
SAY_SECONDS = 15.0
STAGED = ".archive"
DATABASE = "optuna.db"
"""Copied at the end alone, and never its journal: both change while they are read."""
Stamp = tuple[int, int, int]
"""Inode, bytes and time of change of a file."""


@contextmanager
def copy_run(uri: str, run: Run, fingerprint: str) -> Iterator[None]:
    """Copy the run to the archive while the block runs, and what is missing after it."""
    copier = Copier(uri, run, fingerprint)
    patience = None
    try:
        yield
    except KeyboardInterrupt:
        patience = INTERRUPTED_SECONDS
        raise
    finally:
        copier.end(patience)


class Copier:
    """Copies one run to its archive, in a thread of its own, from now until `end`."""

    def __init__(self, uri: str, run: Run, fingerprint: str) -> None:
        self._uri, self._run, self._fingerprint = uri, run, fingerprint
        self._archived: Archived | None = None
        self._listing: Listing | None = None
        self._files: dict[str, tuple[str, ...]] = {}
        self._stamps: dict[str, Stamp] = {}
        self._held: set[str] = set()
        self._copied: dict[str, Stamp] = {}
        self._newest: dict[str, tuple[Version, Version | None]] = {}
        self._problem: str | None = None
        self._whole = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="archive", daemon=True)
        self._thread.start()

    def end(self, patience_seconds: float | None = None) -> None:
        """Copy what is missing, and wait for that, or for so long at most. A warning says what was not copied."""
        self._ended.set()
        deadline = time.monotonic() + patience_seconds if patience_seconds is not None else float("inf")
        while self._thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._thread.join(min(SAY_SECONDS, left))
            if self._thread.is_alive() and left > SAY_SECONDS:
                log.warning("archive %s: still copying run %s; the run itself has ended", self._uri, self._run.name)
        if not self._whole:
            log.warning(
                "archive %s: run %s is not whole there (%s). It is in %s; the same command with --resume copies what "
                "is missing",
                self._uri,
                self._run.name,
                self._problem or "it was still being copied",
                self._run.path,
            )

    def _work(self) -> None:
        pause = INTERVAL_SECONDS
        while not self._ended.wait(pause):
            pause = INTERVAL_SECONDS if self._try() else min(2 * pause, LONGEST_PAUSE_SECONDS)
        again = self._problem is None
        self._whole = self._try()
        if again and not self._whole:
            time.sleep(LAST_PAUSE_SECONDS)
            self._whole = self._try()
        shutil.rmtree(self._run.path / STAGED, ignore_errors=True)

    def _try(self) -> bool:
        """Copy all that is new, and return whether that succeeded."""
        try:
            self._copy()
        except UNANSWERED as error:
            if self._problem is None and not self._ended.is_set():
                log.warning("archive %s: %s. The run continues; this is tried again", self._uri, error)
            self._problem = str(error)
            return False
        self._problem = None
        return True

    def _copy(self) -> None:
        archive = self._archived or self._open()
        ending = self._ended.is_set()
        self._copy_files(archive, ending=ending)
        while name := self._missing_version():
            self._copy_version(archive, name)
            self._prune(archive)
            self._copy_files(archive, ending=ending)
        self._prune(archive)
        self._copy_files(archive, ending=ending, record=True)
        if ending and self._listing != self._make_listing():
            self._write_listing(archive, self._make_listing())

    def _open(self) -> Archived:
        """Open the run in the archive, and read what it has. Raises RunExists if that is another run."""
        archive = Archived(self._uri, self._run)
        listing = archive.listing()
        if listing and listing.fingerprint != self._fingerprint:
            raise RunExists(f"the archive already holds a different run {self._run.name!r}; choose another --name")
        entries = archive.entries()
        for name in entries:
            if name.rpartition("/")[2].startswith("."):  # what a killed copy to a folder has left
                archive.folder.delete(name)
        # A listing is written before its files: one that is not there was announced by a copy that was killed.
        listed = listing.files.items() if listing else ()
        self._listing, self._files = listing, {name: digests for name, digests in listed if name in entries}
        self._held = versions_in(entries)
        for name in self._held:
            with suppress(*versions.DAMAGE):
                path = self._run.path / name / versions.MANIFEST
                if path.read_bytes() == archive.folder.read(f"{name}/{versions.MANIFEST}"):
                    self._copied[name] = _stamp(path)
        for name in sorted(self._copied):
            with suppress(*versions.DAMAGE):
                self._note(name, versions.read(self._run.path / name))
        self._archived = archive
        return archive

    def _local_files(self, ending: bool) -> dict[str, Path]:
        """Return the run's own files by name: no checkpoints, no links, nothing hidden."""
        paths = {}
        for folder, names, files in os.walk(self._run.path):
            names[:] = [name for name in names if not name.startswith(".") and not versions.NAME.fullmatch(name)]
            for file in files:
                path = Path(folder, file)
                wanted = (
                    file == DATABASE if ending and file.startswith(DATABASE) else not file.startswith((".", DATABASE))
                )
                if wanted and not path.is_symlink():
                    paths[path.relative_to(self._run.path).as_posix()] = path
        paths.pop(LISTING, None)
        return paths

    def _copy_files(self, archive: Archived, *, ending: bool, record: bool = False) -> None:
        """Copy the files that have changed, the record last and only on request."""
        files = self._local_files(ending)
        if not record:
            files.pop(RECORD, None)
        changed: dict[str, tuple[bytes, Stamp]] = {}
        for name, path in sorted(files.items(), key=lambda item: (item[0] == RECORD, item)):
            stamp = _stamp(path)
            if self._stamps.get(name) != stamp:
                data = path.read_bytes()
                if self._files.get(name) == (versions.digest(data),):
                    self._stamps[name] = stamp
                else:
                    changed[name] = data, stamp
        if not changed:
            return
        for name, (data, _) in changed.items():
            self._files[name] = (*self._files.get(name, ()), versions.digest(data))
        self._write_listing(archive, self._make_listing())
        for name, (data, stamp) in changed.items():
            archive.write(name, data)
            self._files[name], self._stamps[name] = (versions.digest(data),), stamp

    def _make_listing(self) -> Listing:
        return Listing(run=self._run.name, fingerprint=self._fingerprint, files=dict(self._files))

    def _write_listing(self, archive: Archived, listing: Listing) -> None:
        archive.write(LISTING, checksums.seal(listing).encode())
        self._listing = listing

    def _local_versions(self) -> set[str]:
        paths = set()
        for folder, names, _ in os.walk(self._run.path):
            here = {name for name in names if versions.NAME.fullmatch(name)}
            paths |= {Path(folder, name).relative_to(self._run.path).as_posix() for name in here}
            names[:] = [name for name in names if name not in here and not name.startswith(".")]
        return paths

    def _missing_version(self) -> str | None:
        """Return the version to copy next: the newest, after the best one, without which it is of no use."""
        for folder, local in by_folder(self._local_versions()).items():
            first = []
            with suppress(*versions.DAMAGE):
                first = [versions.read(self._run.path / folder / versions.name(local[-1])).best]
            for version in (*first, *local[::-1]):
                name = f"{folder}/{versions.name(version)}" if version in local else ""
                with suppress(FileNotFoundError):  # it was removed meanwhile, as an old one
                    if name and self._copied.get(name) != _stamp(self._run.path / name / versions.MANIFEST):
                        return name
        return None

    def _copy_version(self, archive: Archived, name: str) -> None:
        """Copy a version, its manifest last. One that is damaged is named and left out."""
        staged = self._run.path / STAGED
        try:
            stamp = _stamp(self._run.path / name / versions.MANIFEST)
            _hold(self._run.path / name, staged)
        except FileNotFoundError:  # it was removed meanwhile, as an old one
            return
        try:
            manifest = versions.check(staged)
        except versions.DAMAGE as error:
            log.warning("archive %s: %s is damaged and not copied: %s", self._uri, self._run.path / name, error)
            self._copied[name] = stamp
            return
        if name in self._held:
            archive.delete_version(name)
        self._held.add(name)
        for file in (*manifest.files, versions.MANIFEST):
            with (staged / file).open("rb") as source:
                archive.folder.upload(source, f"{name}/{file}")
        self._copied[name] = stamp
        self._note(name, manifest)
        shutil.rmtree(staged)

    def _note(self, name: str, manifest: Manifest) -> None:
        """Remember the newest version that the archive can be resumed from: its best one is there too."""
        folder, _, last = name.rpartition("/")
        version, best = versions.parse(last), manifest.best
        if best and f"{folder}/{versions.name(best)}" not in self._copied:
            return
        if folder not in self._newest or version > self._newest[folder][0]:
            self._newest[folder] = version, best

    def _prune(self, archive: Archived) -> None:
        """Remove the versions that the run removed, but for the newest that was copied and its best one."""
        for folder, removed in by_folder(self._held - self._local_versions()).items():
            newest, best = self._newest.get(folder, ((0, 0), None))
            for version in removed:
                if version < newest and version != best:
                    name = f"{folder}/{versions.name(version)}"
                    archive.delete_version(name)
                    self._held.discard(name)
                    self._copied.pop(name, None)


def _hold(version: Path, staged: Path) -> None:
    """Keep a version's files by hard links, whatever becomes of its folder."""
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for path in version.iterdir():
        (staged / path.name).hardlink_to(path)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
