"""Files between this machine and the cluster's claims, checked by SHA-256 on both sides.

Nothing is ever half there: a folder is written under another name, compared, and renamed. What broke on the way is
thrown away, and the same command again begins with what is still missing.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from sp500.errors import ConfigError, DataError, ResourcesError
from sp500.jobs.cluster import checksums
from sp500.jobs.cluster.checksums import Checksums
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.transfer_pod import LIVES_SECONDS

DATA = "/data"
RUNS = "/runs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Folders being written. What is older than a transfer pod gets was left by a client that was killed.
UNFINISHED = ".incoming-"
FORGOTTEN = ["find", DATA, "-maxdepth", "1", "-name", f"{UNFINISHED}*", "-mmin", f"+{LIVES_SECONDS // 60 + 1}"]
# The folder that another takes the place of, until it has: the only one of its name if the pod dies in between.
REPLACED = ".replaced-"
RESTORE = ["sh", "-c", 'if [ -e "$1" ]; then rm -rf "$2"; elif [ -e "$2" ]; then mv -T "$2" "$1"; fi', "restore"]
# Both steps on the other side, so that no connection can break between them: the old folder away, the new one there.
REPLACE = ["sh", "-c", 'if [ -e "$2" ]; then mv -T "$2" "$3"; fi && mv -T "$1" "$2" && rm -rf "$3"', "replace"]


@dataclass
class Fetched:
    """What became of the runs on the claim."""

    new: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    """Here already, file by file."""
    kept: list[str] = field(default_factory=list)
    """Here already under the same name, with other files: left as they are."""


def contents(folder: Path, name: str) -> Checksums:
    """Checksums of a folder that can be uploaded as `name`; nothing of the cluster is needed to tell.

    Raises ConfigError for a name that is none, DataError for a folder without files or with anything but files.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: expected letters, digits, '.', '_' and '-', the first a letter or digit")
    if not (found := checksums.of_folder(folder)):
        raise DataError(f"{folder} has no files to upload")
    return found


def upload(kubectl: Kubectl, pod: str, folder: Path, wanted: Checksums, name: str, *, overwrite: bool) -> bool:
    """Put `folder`, with the contents `wanted`, onto the claim as /data/`name`; False where just these lie there.

    Raises DataError for other files there under that name (without `overwrite`) and for files that arrived damaged,
    ResourcesError when the connection breaks.
    """
    target, incoming = f"{DATA}/{name}", f"{DATA}/{UNFINISHED}{secrets.token_hex(4)}"
    replaced = f"{DATA}/{REPLACED}{name}"
    _exec(kubectl, pod, *RESTORE, target, replaced)
    if target in _found(kubectl, pod, "find", DATA, "-mindepth", "1", "-maxdepth", "1", "-print0"):
        how = checksums.difference(wanted, _remote(kubectl, pod, target))
        if not how:
            return False
        if not overwrite:
            raise DataError(f"{target} holds other files ({how}): --overwrite replaces it, --name puts yours beside it")
    _exec(kubectl, pod, *FORGOTTEN, "-exec", "rm", "-rf", "{}", "+")
    _exec(kubectl, pod, "mkdir", incoming)
    try:
        with kubectl.writing("exec", "--stdin", pod, "--", "tar", "-xf", "-", "-C", incoming) as stream:
            _pack(folder, list(wanted), stream)
        if how := checksums.difference(wanted, _remote(kubectl, pod, incoming)):
            raise DataError(f"{folder} arrived damaged and was not kept ({how}); upload it again")
        _exec(kubectl, pod, *REPLACE, incoming, target, replaced)
    finally:
        with suppress(ResourcesError):  # a later upload clears what this one cannot
            _exec(kubectl, pod, "rm", "-rf", incoming)
    return True


def fetch(kubectl: Kubectl, pod: str, runs: Path, names: Sequence[str], *, overwrite: bool) -> Fetched:
    """Bring ended runs (all, or those named) from the claim into the folder `runs`.

    A run has ended when it has its record, which is written last. A run that lies here with other files is kept unless
    `overwrite`. Raises ConfigError for a name that no ended run has, DataError for files that arrived damaged,
    ResourcesError when the connection breaks; runs that came before are kept.
    """
    records = _found(kubectl, pod, "find", RUNS, "-mindepth", "2", "-maxdepth", "2", "-name", "record.json", "-print0")
    ended = sorted(PurePosixPath(record).parent.name for record in records)
    if unknown := sorted(set(names) - set(ended)):
        raise ConfigError(f"no ended run {', '.join(unknown)} on the claim; it has: {', '.join(ended) or 'none'}")
    runs.mkdir(parents=True, exist_ok=True)
    result = Fetched()
    for name in names or ended:
        wanted = _remote(kubectl, pod, f"{RUNS}/{name}")
        here = runs / name
        if here.exists() and not checksums.difference(wanted, checksums.of_folder(here)):
            result.same.append(name)
        elif here.exists() and not overwrite:
            result.kept.append(name)
        else:
            _fetch_run(kubectl, pod, here, wanted)
            result.new.append(name)
    return result


def _fetch_run(kubectl: Kubectl, pod: str, here: Path, wanted: Checksums) -> None:
    # One level deeper than a run, so that nobody who lists the runs meanwhile sees it.
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=here.parent) as temporary:
        incoming, replaced = Path(temporary, here.name), Path(temporary, "replaced")
        with kubectl.reading("exec", pod, "--", "tar", "-cf", "-", "-C", RUNS, here.name) as stream:
            _unpack(stream, Path(temporary))
        if how := checksums.difference(wanted, checksums.of_folder(incoming)):
            raise DataError(f"run {here.name} arrived damaged and was not kept ({how}); fetch it again")
        if here.exists():
            here.rename(replaced)
        incoming.rename(here)


def _pack(folder: Path, paths: Sequence[str], stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in paths:
            entry = archive.gettarinfo(folder / path, arcname=path)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o644
            with (folder / path).open("rb") as file:
                archive.addfile(entry, file)


def _unpack(stream: IO[bytes], folder: Path) -> None:
    """Write what comes, as far as it can be read: whether that is all, the checksums tell."""
    with suppress(tarfile.TarError), tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts or not (entry.isfile() or entry.isdir()):
                raise DataError(f"{entry.name!r} on the claim is no plain file or folder; fetch the other runs by name")
            content = archive.extractfile(entry)
            if content is None:
                (folder / path).mkdir(parents=True, exist_ok=True)
                continue
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("wb") as file:
                shutil.copyfileobj(content, file)
    while stream.read(1 << 20):  # to the end, so that kubectl can say how it ended
        pass


def _exec(kubectl: Kubectl, pod: str, *argv: str) -> str:
    return kubectl.text("exec", pod, "--", *argv)


def _found(kubectl: Kubectl, pod: str, *argv: str) -> list[str]:
    return [path for path in _exec(kubectl, pod, *argv).split("\0") if path]


def _remote(kubectl: Kubectl, pod: str, folder: str) -> Checksums:
    return checksums.remote(_exec(kubectl, pod, *checksums.remote_argv(folder)), folder)
