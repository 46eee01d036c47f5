"""The table of prices that a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sp500 import entry

if TYPE_CHECKING:
    from sp500.runs.cost import PriceTable

DEFAULT = Path("cluster/prices.yaml")


def read(path: Path | None) -> PriceTable | None:
    """The file's table; of no file the one of this folder's `cluster/prices.yaml`, None where that is not there.

    Raises ConfigError that names file, key, and what was expected.
    """
    from sp500.runs.cost import PriceTable

    if path is None and not DEFAULT.exists():
        return None
    file = path or DEFAULT
    given = entry.mapping(file, "--prices", "a table of prices: currency, date, source, types, rule")
    return entry.validated(PriceTable, given, f"--prices {file}")
