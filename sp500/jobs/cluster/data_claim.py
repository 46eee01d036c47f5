"""The claim that datasets are uploaded to."""

from __future__ import annotations

import re
from pathlib import Path

from sp500.errors import ConfigError, DataError
from sp500.jobs.cluster import checksums
from sp500.jobs.cluster.checksums import Contents

MOUNT = "/data"
CLAIM = "sp500-data"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def local_contents(folder: Path, name: str) -> Contents:
    """Checksums of a folder that can be uploaded as `name`, without asking the cluster.

    Raises ConfigError for an invalid name, DataError for a folder without files or with anything but files and folders.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r}: expected letters, digits, '.', '_' and '-', the first a letter or digit")
    contents = checksums.of_folder(folder)
    if links := checksums.links_of(contents):
        raise DataError(
            f"{folder / next(iter(links))} is a link, which upload-data cannot transfer; copy the file there"
        )
    if not contents:
        raise DataError(f"{folder} has no files to upload")
    return contents
