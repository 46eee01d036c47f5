"""Models by name on the Hugging Face hub: fetched once, or refused with the way out."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from sp500.errors import ConfigError, extra

log = logging.getLogger(__name__)

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that huggingface_hub reads."""
OLD_TOKEN = "HUGGINGFACE_HUB_TOKEN"  # noqa: S105 - a variable's name
"""Older guides name it, and the library does not read it."""
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""No pickles."""
SECONDS = 5.0


def fetch(name: str, field: str) -> Path:
    """The folder of a model: `name` itself, or a copy of that model of the hub.

    Raises ConfigError, within seconds, that names the field: for a folder that is not there, a model that needs a token
    or a licence, and a hub that does not answer.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not NAME.fullmatch(name) or folder.parent.is_dir():
        raise ConfigError(f"{field} {name}: no such folder; expected one with a config.json, or OWNER/NAME on the hub")
    with extra("llm"):
        from huggingface_hub import errors, snapshot_download
        from huggingface_hub.utils import disable_progress_bars

    token, endpoint = _token(), os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    disable_progress_bars()
    try:
        found = snapshot_download(name, token=token, etag_timeout=SECONDS, allow_patterns=list(FILES))
    except errors.GatedRepoError:
        raise ConfigError(_gated(name, field, endpoint, token)) from None
    except errors.RepositoryNotFoundError:
        hint = "" if token else ", or it is private: set HF_TOKEN"
        raise ConfigError(f"{field} {name}: {endpoint} has no model of that name{hint}") from None
    except (OSError, ValueError) as error:
        if isinstance(cause := error.__cause__ or error, errors.HfHubHTTPError):
            code = cause.response.status_code
            hint = "HF_TOKEN is not valid, or has no right to it" if code in (401, 403) else "try again later"
            raise ConfigError(f"{field} {name}: {endpoint} answers {code}: {hint}") from None
        raise ConfigError(
            f"{field} {name}: {endpoint} cannot be reached, and no copy is in the cache; fetch the model where there is"
            f" a network (hf download {name} --local-dir FOLDER), mount FOLDER and give it as {field}"
        ) from error
    return Path(found)


def _gated(name: str, field: str, endpoint: str, token: str | None) -> str:
    if not token:
        return f"{field} {name}: is gated: accept its licence at {endpoint}/{name} and set HF_TOKEN"
    return f"{field} {name}: is gated, and the owner of the token has not accepted its licence at {endpoint}/{name}"


def _token() -> str | None:
    """The token of the environment; None lets the library look for one that was logged in."""
    found = next((os.environ[name] for name in TOKENS if os.environ.get(name)), None)
    if not found and (found := os.environ.get(OLD_TOKEN)):
        log.warning("%s is set, which the hub's library does not read; it is taken for %s", OLD_TOKEN, TOKENS[0])
    return found
