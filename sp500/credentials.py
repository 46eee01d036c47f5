"""Passwords in addresses: refused where an address is given, masked where settings are printed or kept.

An address ends up in records, logs and process lists. The libraries that open it find credentials in the environment.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator

# Object stores have no ports, and their secret keys may hold a slash.
PASSWORD_IN_URL = re.compile(
    r"(?<=://)([^/@\s]*:[^/@\s]+|(?<=s3://)[^@\s]*:[^@\s]+|(?<=gs://)[^@\s]*:[^@\s]+)(?=@)"
    r"|(?<=[?&])(access_key|secret_key|session_token)=[^&\s]*"
)


def has_password(text: str) -> bool:
    """Whether the text holds an address with a password, ://user:password@."""
    return PASSWORD_IN_URL.search(text) is not None


def without_password(address: str) -> str:
    """The address itself. Raises ValueError, which does not repeat it, for one with a password."""
    if has_password(address):
        raise ValueError(
            "the address holds a password (://user:password@, or a key after ?). Leave it out and set the variables of "
            "the store, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return address


def mask(value: Any) -> Any:
    """Plain data with *** in the place of user and password of every address in it."""
    if isinstance(value, dict):
        return {key: mask(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [mask(part) for part in value]
    return PASSWORD_IN_URL.sub("***", value) if isinstance(value, str) else value


Address = Annotated[str, AfterValidator(without_password)]
