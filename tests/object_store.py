"""An object store over HTTP for tests: moto's server in a process of its own (scripts/moto installs it)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs

SERVER = Path(__file__).parents[1] / ".venv-moto" / "bin" / "moto_server"
BUCKET = "bucket"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a store with one empty bucket, while the block runs."""
    log = folder / "moto.log"
    with log.open("w") as file, subprocess.Popen([SERVER, "-p", "0"], stdout=file, stderr=file) as process:
        try:
            while not (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())):
                assert process.poll() is None, log.read_text()
            files(found[1], allow_bucket_creation=True).create_dir(BUCKET)
            yield found[1]
        finally:
            process.kill()


def files(address: str, **options: bool) -> pyarrow.fs.S3FileSystem:
    """What is in the store, not through the code under test."""
    keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
    return pyarrow.fs.S3FileSystem(endpoint_override=address, **keys, **options)


def environment(address: str) -> dict[str, str]:
    """Variables that lead to the store."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}
