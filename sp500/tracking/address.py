"""Address of the mirror: a server, a database, or a folder, which becomes one with a database in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import make_url

from sp500.errors import ConfigError

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class Address:
    """A tracking URI as MLflow accepts it."""

    uri: str
    folder: Path | None = None
    """Folder of the database and the artifacts; None if a server decides."""

    @property
    def artifacts(self) -> str | None:
        """URI of the folder of artifacts; None if the server decides."""
        return (self.folder / ARTIFACTS).as_uri() if self.folder else None


def resolve(text: str) -> Address:
    """Return the address that a URI or a path means.

    MLflow 3 makes no experiments in plain folders (its file store is in maintenance), so a folder, or its file:// URI,
    becomes `sqlite:///FOLDER/mlflow.db`. Raises ConfigError for a file, and for a folder that such a URI cannot name.
    """
    if text.startswith("sqlite:///"):
        return Address(text, Path(make_url(text).database or "").absolute().parent)
    if text.startswith("file:"):
        parts = urlsplit(text)
        if parts.query or parts.fragment:
            raise ConfigError(f"--uri {text}: the folder ends at the first ? or #; name another folder, or its path")
        text = unquote(parts.path)
    elif re.match(r"[a-z][a-z0-9+.-]*:", text) or text == "databricks":
        return Address(text)
    folder = Path(text).expanduser().absolute()
    if folder.is_file():
        raise ConfigError(f"--uri {text}: is a file; expected a folder, sqlite:///{folder}, or the address of a server")
    uri = f"sqlite:///{folder / DATABASE}"
    if make_url(uri).database != str(
        folder / DATABASE
    ):  # written so that it is, MLflow makes a folder of what is written
        raise ConfigError(
            f"--uri {text}: {folder} has a ? or % in its path, which MLflow misreads; name another folder"
        )
    return Address(uri, folder)
