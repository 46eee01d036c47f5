"""The layout of a run in an archive.

    ARCHIVE/RUN/archive.json                       the run's files and their sha256
    ARCHIVE/RUN/{config.yaml, record.json, ...}    the files
    ARCHIVE/RUN/checkpoints/VERSION/...            a version of the checkpoint; its manifest.json is copied last

`archive.json` is written before the files that it names, with the sha256 that each has and the one that it is about to
get, so that a copy that is killed leaves nothing that a reader takes for damage. A version counts once it has its
manifest, whose checksums its files have to match.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from sp500.errors import CheckpointError, ConfigError, SP500Error
from sp500.runs import checksums, versions
from sp500.runs.store import Run
from sp500.runs.versions import Manifest, Version
from sp500.storage import Entry, Folder

LISTING, RECORD = "archive.json", "record.json"
VERSION = re.compile(rf"((?:[^./][^/]*/)*{versions.NAME.pattern})/[^/]+")
"""A file of a version that is not in a hidden folder."""
TIMEOUT_SECONDS = 5.0
UNANSWERED = (OSError, SP500Error, pa.ArrowException)
"""Errors of an archive that cannot be reached, read or written."""


class Listing(BaseModel):
    """The contents of `archive.json`."""

    model_config = ConfigDict(frozen=True)

    run: str
    fingerprint: str
    files: dict[str, tuple[str, ...]]
    """For each file the sha256 that it may have: two or more while it is being replaced."""


class Archived:
    """One run in an archive. Its methods raise one of UNANSWERED, its making ConfigError if the run lies there."""

    def __init__(self, uri: str, run: Run) -> None:
        place, mark, options = uri.partition("?")
        self.uri = f"{place}/{run.name}"
        self.folder = Folder(f"{self.uri}{mark}{options}", TIMEOUT_SECONDS)
        if place.startswith("file:"):
            there, here = Path(unquote(urlsplit(self.uri).path)).resolve(), run.path.resolve()
            if there == here or there in here.parents or here in there.parents:
                raise ConfigError(f"io.archive {uri}: the run itself is there; choose another folder")

    def listing(self) -> Listing | None:
        """Read the run's listing; None if the archive has no such run. Raises CheckpointError for a damaged one."""
        try:
            listing = Listing.model_validate_json(checksums.unseal(self.folder.read(LISTING)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.uri}/{LISTING} is damaged: {error}. Take another archive or name") from error
        for name in listing.files:
            check_name(name, f"{self.uri}/{LISTING}")
        return listing

    def entries(self) -> dict[str, Entry]:
        """Return all files by name. Raises CheckpointError for a name that leads out of the run, as keys of S3 may."""
        entries = self.folder.entries()
        for name in entries:
            if {"", ".", ".."}.intersection(name.split("/")):
                raise CheckpointError(
                    f"{self.uri} is damaged: it names {name!r:.80}. Remove that, or use another archive"
                )
        return entries

    def write(self, name: str, data: bytes) -> None:
        """Write a small file into the archive."""
        self.folder.upload(io.BytesIO(data), name)

    def manifest(self, version: str) -> Manifest:
        """Read the manifest of a version, such as checkpoints/epoch-00007. Raises one of versions.DAMAGE."""
        place = f"{version}/{versions.MANIFEST}"
        return Manifest.parse(self.folder.read(place), f"{self.uri}/{place}")

    def delete_version(self, version: str) -> None:
        """Remove a version: first its manifest, without which readers ignore it."""
        self.folder.delete(f"{version}/{versions.MANIFEST}")
        self.folder.delete(version)


def check_name(name: str, place: str) -> None:
    """Raise CheckpointError for a name that leads out of the run's folder, or is hidden in it."""
    # Not by a Path, which leaves out empty parts and single dots: a server may read them otherwise.
    if "\0" in name or any(not part or part.startswith(".") for part in name.split("/")):
        raise CheckpointError(f"{place} is damaged: it names {name!r:.80}")


def versions_in(entries: dict[str, Entry]) -> set[str]:
    """Return the paths of the versions of which there is any file, whole or not."""
    return {match[1] for name in entries if (match := VERSION.fullmatch(name))}


def by_folder(names: set[str]) -> dict[str, list[Version]]:
    """Return the versions of each folder of checkpoints, oldest first."""
    folders: dict[str, list[Version]] = {}
    for name in names:
        folder, _, version = name.rpartition("/")
        folders.setdefault(folder, []).append(versions.parse(version))
    return {folder: sorted(members) for folder, members in sorted(folders.items())}
