"""Optional parts of the installation: what is missing, and how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sp500.errors import ConfigError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports of packages that only `pip install sp500[name]` installs. Raises ConfigError when one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'sp500[{name}]'") from None
