"""Sizes of memory as people write them."""

from __future__ import annotations

import re

UNITS = {"MiB": 2**20, "GiB": 2**30}


def size_bytes(size: str) -> int:
    """Return the bytes of a size such as 512MiB or 1.5GiB. Raises ValueError."""
    if not re.fullmatch(r"\d+(\.\d+)?(MiB|GiB)", size):
        raise ValueError(f"invalid size {size!r}: expected a number with a unit, for example 512MiB")
    return int(float(size[:-3]) * UNITS[size[-3:]])
