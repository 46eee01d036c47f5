"""The table of rates that a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sp500.schema import read_mapping, validate

if TYPE_CHECKING:
    from sp500.runs.cost import RateTable

DEFAULT = Path("cluster/rates.yaml")


def read(path: Path | None) -> RateTable | None:
    """Return the table in `path`. Default: `cluster/rates.yaml` of this folder, or None if that does not exist.

    Raises ConfigError that names file, key, and what was expected.
    """
    from sp500.runs.cost import RateTable

    if path is None and not DEFAULT.exists():
        return None
    file = path or DEFAULT
    settings = read_mapping(file, "--rates", "a table of rates: currency, date, source, types, rule")
    return validate(RateTable, settings, f"--rates {file}")
