"""Models by name on the Hugging Face hub: fetched once, or refused with advice."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread, get_ident
from typing import Any

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
"""The first answer of the hub, and each later silence, may take so long."""


def fetch(name: str, field: str) -> Path:
    """Return the folder of a model: `name` itself, or a copy of that model of the hub.

    Raises ConfigError, within seconds, that names the field: for a folder that is not there, a model that needs a token
    or a licence, and a hub that does not answer.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not NAME.fullmatch(name) or folder.parent.is_dir():
        raise ConfigError(f"{field} {name}: no such folder; expected one with a config.json, or OWNER/NAME on the hub")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # else it first asks the hub for a list of agents
    with extra("llm"):
        from huggingface_hub import errors
    token, endpoint = _token(), os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        return Path(_download(name, token, endpoint))
    except errors.GatedRepoError:
        raise ConfigError(_explain_gate(name, field, endpoint, token)) from None
    except errors.RepositoryNotFoundError:
        hint = "" if token else ", or it is private: set HF_TOKEN"
        raise ConfigError(f"{field} {name}: {endpoint} has no model of that name{hint}") from None
    except (errors.HTTPError, OSError, ValueError) as error:
        answers = [cause for cause in (error, error.__cause__) if isinstance(cause, errors.HfHubHTTPError)]
        if answers:
            code = answers[0].response.status_code
            hint = "HF_TOKEN is not valid, or has no right to it" if code in (401, 403) else "try again later"
            raise ConfigError(f"{field} {name}: {endpoint} answers {code}: {hint}") from None
        raise ConfigError(
            f"{field} {name}: {endpoint} cannot be reached, and no copy is in the cache; fetch the model where there is"
            f" a network (hf download {name} --local-dir FOLDER), mount FOLDER and set it as {field}"
        ) from error


def _download(name: str, token: str | None, endpoint: str) -> str:
    """Return the folder in the library's cache; if the hub does not answer, the copy that is there."""
    from huggingface_hub import HfApi, errors, set_client_factory, snapshot_download
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as library

    disable_progress_bars()
    library.set_verbosity_error()  # its warnings say of each try what the error says once
    set_client_factory(partial(_client, set()))
    get = partial(snapshot_download, name, token=token, endpoint=endpoint, allow_patterns=list(FILES))
    try:
        _first_answer(partial(HfApi(endpoint, token).model_info, name, timeout=SECONDS))
    except (errors.HTTPError, OSError):
        with suppress(errors.LocalEntryNotFoundError):
            return str(get(local_files_only=True))
        raise
    return str(get(etag_timeout=SECONDS))


def _first_answer(ask: Callable[[], object]) -> None:
    """Wait for `ask`, SECONDS at most. Raises what it raises, and TimeoutError.

    In a thread that may be left behind: neither the look-up of a host's name nor the tries of all its addresses
    have a limit.
    """
    from huggingface_hub import errors

    answer = Future[object]()

    def run() -> None:
        try:
            answer.set_result(ask())
        except (errors.HTTPError, OSError, ValueError) as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    answer.result(SECONDS)


def _client(unanswered: set[tuple[int, str, str, str]]) -> Any:
    """Return the library's client. By default it waits without end, and asks five times again with growing pauses.

    Here no silence is longer than SECONDS, and what was not answered is not asked again. A download that was cut off
    continues: it asks for what comes after the part that it has.
    """
    from huggingface_hub.utils import hf_raise_for_status
    from huggingface_hub.utils._http import default_client_factory

    def question(request: Any) -> tuple[int, str, str, str]:
        return get_ident(), request.method, str(request.url), request.headers.get("range", "")

    def limit(request: Any) -> None:
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), SECONDS)
        if question(request) in unanswered:
            raise TimeoutError(f"{request.url} does not answer")
        unanswered.add(question(request))

    def check(response: Any) -> None:
        if response.status_code == 429 or response.status_code >= 500:
            hf_raise_for_status(response)
        if "/api/" in response.url.path:  # a file is answered when all of it has come
            unanswered.discard(question(response.request))

    client = default_client_factory()
    client.event_hooks["request"].append(limit)
    client.event_hooks["response"].append(check)
    return client


def _explain_gate(name: str, field: str, endpoint: str, token: str | None) -> str:
    if not token:
        return f"{field} {name}: is gated: accept its licence at {endpoint}/{name} and set HF_TOKEN"
    return f"{field} {name}: is gated, and the owner of the token has not accepted its licence at {endpoint}/{name}"


def _token() -> str | None:
    """Return the token of the environment; None lets the library look for one that was logged in."""
    token = next((os.environ[name] for name in TOKENS if os.environ.get(name)), None)
    if not token and (token := os.environ.get(OLD_TOKEN)):
        log.warning("%s is set, which the hub's library does not read; it is used as %s", OLD_TOKEN, TOKENS[0])
    return token
