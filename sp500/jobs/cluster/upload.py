"""Upload a folder to a claim, verified by SHA-256 on both sides.

An upload is atomic: the folder is written under a temporary name, compared, and renamed. An interrupted one leaves the
claim as it was, and the same command repeats it.
"""

from __future__ import annotations

import re
import secrets
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from sp500.errors import ConfigError, DataError, ResourcesError
from sp500.jobs.cluster import checksums
from sp500.jobs.cluster.checksums import LINK, Contents
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.transfer_pod import LIFETIME_SECONDS

# The claim that datasets are uploaded to, and names of folders on it.
DATA_MOUNT, DATA_CLAIM = "/data", "sp500-data"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Folders being written. One that is older than any transfer pod was left by a client that was killed.
UNFINISHED = ".incoming-"
ABANDONED = ["-maxdepth", "1", "-name", f"{UNFINISHED}*", "-mmin", f"+{LIFETIME_SECONDS // 60 + 1}"]
# The old folder while a new one takes its place. If the pod dies in between it is the only copy.
REPLACED = ".replaced-"
RESTORE = ["sh", "-c", 'if [ -e "$1" ]; then rm -rf "$2"; elif [ -e "$2" ]; then mv -T "$2" "$1"; fi', "restore"]
# A job of the cluster may have made the folder meanwhile.
PLACE = ["sh", "-c", 'if [ -e "$2" ]; then echo "$2 is there by now" >&2; exit 1; fi; mv -T "$1" "$2"', "place"]
# Both renames in one command of the pod, so that no connection can break between them.
REPLACE = ["sh", "-c", 'if [ -e "$2" ]; then mv -T "$2" "$3"; fi && mv -T "$1" "$2" && rm -rf "$3"', "replace"]


def local_contents(folder: Path, name: str) -> Contents:
    """Return the checksums of a folder that can be uploaded as `name`, without asking the cluster.

    Raises ConfigError for an invalid name, DataError for a folder without files or with anything but files and folders.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: expected letters, digits, '.', '_' and '-', the first a letter or digit")
    contents = checksums.of_folder(folder)
    if link := next((path for path, value in contents.items() if value.startswith(LINK)), ""):
        raise DataError(f"{folder / link} is a link, which upload-data cannot transfer; copy the file there")
    if not contents:
        raise DataError(f"{folder} has no files to upload")
    return contents


def upload(
    kubectl: Kubectl,
    pod: str,
    folder: Path,
    wanted: Contents,
    target: str,
    *,
    overwrite: bool,
    advice: str,
    ignored: Sequence[str] = (),
) -> bool:
    """Put what `wanted` lists of `folder` at `target`, which is MOUNT/NAME; False if it is there already.

    `ignored` are files that may be there besides. Raises DataError for others there (without `overwrite`; `advice`
    says what to do) and for files that arrived damaged, ResourcesError when the connection breaks.
    """
    mount, name = target.rsplit("/", 1)
    incoming, replaced = f"{mount}/{UNFINISHED}{secrets.token_hex(4)}", f"{mount}/{REPLACED}{name}"
    kubectl.execute(pod, *RESTORE, target, replaced)
    present = kubectl.execute(pod, "find", mount, "-mindepth", "1", "-maxdepth", "1", "-print0").split("\0")
    if target in present:
        there = {path: value for path, value in checksums.of_claim(kubectl, pod, target).items() if path not in ignored}
        changes = checksums.difference(wanted, there)
        if not changes:
            return False
        if not overwrite:
            raise DataError(f"{target} holds other files ({changes}); {advice}")
    kubectl.execute(pod, "find", mount, *ABANDONED, "-exec", "rm", "-rf", "{}", "+")
    kubectl.execute(pod, "mkdir", incoming)
    try:
        with kubectl.writing("exec", "--stdin", pod, "--", "tar", "-xf", "-", "-C", incoming) as stream:
            _pack(folder, list(wanted), stream)
        if changes := checksums.difference(wanted, checksums.of_claim(kubectl, pod, incoming)):
            raise DataError(f"{folder} arrived damaged and was discarded ({changes}); upload it again")
        kubectl.execute(pod, *(REPLACE if overwrite else PLACE), incoming, target, replaced)
    finally:
        with suppress(ResourcesError):  # a later upload removes what this one cannot
            kubectl.execute(pod, "rm", "-rf", incoming)
    return True


def _pack(folder: Path, paths: Sequence[str], stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in paths:
            entry = archive.gettarinfo(folder / path, arcname=path)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if entry.issym():
                archive.addfile(entry)
                continue
            entry.mode = 0o644
            with (folder / path).open("rb") as file:
                archive.addfile(entry, file)
