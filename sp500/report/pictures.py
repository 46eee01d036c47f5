"""Figures and tables of the report as files: for slides, papers and other programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from sp500.formatting import MINUS
from sp500.machine.disk import write_atomic
from sp500.report.plot_style import Figure
from sp500.report.tables import Table

LONGEST = 80
"""Letters of a file's name."""
NAMESPACES = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First letters of what a spreadsheet would compute."""


Item = TypeVar("Item")


def write_files(figures: Sequence[Figure], tables: Sequence[Table], out: Path) -> None:
    """Write figures/*.svg, figures/*.png and tables/*.csv into the folder `out`. Files of other names stay."""
    for folder in ("figures", "tables"):
        (out / folder).mkdir(exist_ok=True)
    for name, figure in _name([figure.name for figure in figures], figures):
        write_atomic(out / "figures" / f"{name}.svg", figure.svg.replace("<svg", NAMESPACES, 1))
        write_atomic(out / "figures" / f"{name}.png", figure.png)
    for name, table in _name([table.caption for table in tables], tables):
        write_atomic(out / "tables" / f"{name}.csv", write_csv(table))


def write_csv(table: Table) -> str:
    """Return a table as CSV. Numbers have an ASCII minus, and no text begins as a formula does."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    for row in table.rows:
        writer.writerow(
            [
                cell.replace(MINUS, "-") if column.numeric else f"'{cell}" if cell.startswith(FORMULA) else cell
                for cell, column in zip(row.cells, table.columns, strict=True)
            ]
        )
    return file.getvalue()


def _name(titles: Sequence[str], items: Sequence[Item]) -> list[tuple[str, Item]]:
    """Return the items with names for files, each once."""
    names: dict[str, Item] = {}
    for title, item in zip(titles, items, strict=True):
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:LONGEST] or "unnamed"
        taken = sum(other == name or other.startswith(f"{name}.") for other in names)
        names[f"{name}.{taken + 1}" if taken else name] = item
    return list(names.items())
