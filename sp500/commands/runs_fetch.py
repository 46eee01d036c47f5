"""`sp500 runs fetch`: a run from its archive."""

from __future__ import annotations

import json
from typing import Annotated

import tyro
from pydantic import ConfigDict, field_validator

from sp500.commands.verb import RunsFlags, verb
from sp500.config import archive_uri
from sp500.runs.store import RunStore


class Fetch(RunsFlags):
    """Copy a run, ended or not, from its archive (io.archive), verified by checksums.

    Exit code 1: a damaged version was left out.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # an address may hold a password

    name: tyro.conf.Positional[str]
    """Name of the run."""
    uri: Annotated[str, tyro.conf.arg(name="from")]
    """The archive: s3://BUCKET/PREFIX or file:///FOLDER. Credentials come from the environment."""

    @field_validator("uri")
    @classmethod
    def _is_an_archive(cls, uri: str) -> str:
        return archive_uri(uri)


def _fetch(flags: Fetch) -> tuple[str, int]:
    from sp500.runs.archive import fetching

    store = RunStore(flags.runs_dir)
    fetched, folder = fetching.fetch(store, flags.name, flags.uri), store.root / flags.name
    plain = {"run": flags.name, "folder": str(folder), "files": fetched.files, "versions": fetched.versions}
    if flags.json_output:
        text = json.dumps({**plain, "damaged": fetched.damaged}, indent=1)
    elif fetched.files or fetched.versions:
        text = f"{folder} fetched: {len(fetched.files)} files, {len(fetched.versions)} versions, checksums equal"
    else:
        text = f"{folder} is up to date with the archive"
    return text, int(bool(fetched.damaged))


main = verb("runs fetch", Fetch, _fetch)
