"""The token for Ray clusters: where Ray's client finds it, and the token file of this machine.

Ray 2.60 makes `~/.ray/auth_token` readable by every user of the machine, and anybody with the token can run code as its
owner. So this module creates the file before Ray starts, readable by its owner only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sp500.errors import ResourcesError


@dataclass(frozen=True)
class Token:
    """The token that Ray's client would send, and its source."""

    text: str = field(default="", repr=False)
    source: str = ""
    """The variable or file that it comes from. Empty if there is none."""
    fault: str = ""
    """The reason that it cannot be sent."""


def token_path(environment: Mapping[str, str], home: Path) -> Path:
    """Return the file that Ray reads a token from."""
    return Path(environment.get("RAY_AUTH_TOKEN_PATH") or home / ".ray" / "auth_token").absolute()


def find_token(environment: Mapping[str, str], home: Path) -> Token:
    """Find the token as Ray's client does: the variable, the file that a variable names, the file at home."""
    path = token_path(environment, home)
    if environment.get("RAY_AUTH_TOKEN", "").strip():
        text, source = environment["RAY_AUTH_TOKEN"].strip(), "RAY_AUTH_TOKEN"
    else:
        try:
            text, source = path.read_text(errors="replace").split("\n")[0].strip(), str(path)
        except FileNotFoundError:
            text, source = "", ""
        except OSError as error:
            return Token(source=str(path), fault=f"{path} cannot be read ({error.strerror})")
    if not text and environment.get("RAY_AUTH_TOKEN_PATH"):
        return Token(source=str(path), fault=f"RAY_AUTH_TOKEN_PATH names {path}, which is empty or not there")
    if not (text.isascii() and text.isprintable()):
        return Token(source=source, fault=f"{source} holds what no token can be")
    return Token(text, source if text else "")


def ray_token() -> str:
    """Return this user's token. Creates a missing file, readable only by its owner. Raises ResourcesError."""
    path = token_path({}, Path.home())
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
    """Create the token file, unless the environment names another token or turns authentication off."""
    elsewhere = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not elsewhere and os.environ.get("RAY_AUTH_MODE", "token").lower() == "token":
        ray_token()
