"""The table of rates that a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sp500.console import entry
from sp500.schema import validate

if TYPE_CHECKING:
    from sp500.runs.cost import RateTable

DEFAULT = Path("cluster/rates.yaml")


def read(path: Path | None) -> RateTable | None:
    """The file's table; of no file the one of this folder's `cluster/rates.yaml`, None where that is not there.

    Raises ConfigError that names file, key, and what was expected.
    """
    from sp500.runs.cost import RateTable

    if path is None and not DEFAULT.exists():
        return None
    file = path or DEFAULT
    given = entry.mapping(file, "--rates", "a table of rates: currency, date, source, types, rule")
    return validate(RateTable, given, f"--rates {file}")
