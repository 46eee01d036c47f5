"""Passwords in addresses, refused in flags and masked in settings; and the file of the server's key.

An address ends up in records, logs and process lists. The libraries that open it find credentials in the environment.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from sp500.errors import ConfigError

API_KEY = "SP500_API_KEY"
"""Environment variable with the key that requests to a server have to bring."""
# Object stores have no ports, and their secret keys may hold a slash.
# A Path keeps one of the two slashes.
PASSWORD_IN_URL = re.compile(
    r"(?:(?<=://)|(?<=:/)(?!/))([^/@\s]*:[^/@\s]+|(?:(?<=[sg][3s]://)|(?<=[sg][3s]:/))[^@\s]*:[^@\s]+)(?=@)"
    r"|(?<=[?&])(access_key|secret_key|session_token)=[^&\s]*"
)


REFUSAL = (
    "the address holds a password (://user:password@, or a key after ?). Leave it out and set the variables of the "
    "store, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)


def has_password(text: str) -> bool:
    """Return whether the text holds an address with a password, ://user:password@."""
    return PASSWORD_IN_URL.search(text) is not None


def without_password(address: str) -> str:
    """Return the address itself. Raises ValueError, which does not repeat it, for one with a password."""
    if has_password(address):
        raise ValueError(REFUSAL)
    return address


def check_settings(value: object, key: str = "") -> None:
    """Raise ConfigError with the dotted key of an address with a password. pydantic would repeat the value."""
    if isinstance(value, (str, PurePath)):
        if has_password(str(value)):
            raise ConfigError(f"{key}: {REFUSAL}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            check_settings(part, key)
    elif isinstance(value, (dict, BaseModel)):
        for name, part in (value if isinstance(value, dict) else vars(value)).items():
            check_settings(part, f"{key}.{name}" if key else str(name))


def mask(value: Any) -> Any:
    """Return plain data with user and password of every address in it replaced by ***."""
    if isinstance(value, dict):
        return {key: mask(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [mask(part) for part in value]
    return PASSWORD_IN_URL.sub("***", value) if isinstance(value, str) else value


Address = Annotated[str, AfterValidator(without_password)]
