"""The files of docs/your-own.md, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "your-own.md"


def write(folder: Path) -> None:
    """Write each block of the page that begins with its file's name."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).write_text(text)
