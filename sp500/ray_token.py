"""The token of Ray clusters on this machine, in Ray's own file.

Ray 2.60 makes `~/.ray/auth_token` readable by every user of the machine, and whoever has the token runs code as its
owner. So the file is made here, before Ray starts, for its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from sp500.errors import ResourcesError


def ray_token() -> str:
    """The token of this user; the file is made if it is missing, and closed to others. Raises ResourcesError."""
    path = Path.home() / ".ray" / "auth_token"
    try:
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        path.chmod(0o600)
        return path.read_text().strip()
    except OSError as error:
        raise ResourcesError(
            f"{path}: the token of Ray cannot be kept there ({error.strerror}). Set HOME to a folder that you can "
            "write to"
        ) from error


def ensure_ray_token() -> None:
    """Make the token's file, unless the environment names another token or none is wanted."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not named and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        ray_token()
