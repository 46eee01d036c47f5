"""The report's tables: captions, columns and rows of finished text.

One table serves the page and the Markdown, so both say the same. The first cell of a row is its header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sp500 import formatting
from sp500.formatting import NOTHING, TIMES, approx, fixed, percent
from sp500.runs.record import RunRecord

RUNS = 500
"""Runs in the table of all runs: a browser takes seconds for thousands of rows."""
CARDS = 3
"""Sets of prices side by side."""
REASON = 80
"""Letters of a reason in a table: a message with a path and its remedies takes five lines of a column."""
NAMES = 20
"""Runs that a sentence names."""
Cells = Callable[..., dict[str, str]]
"""Columns that a run's name adds to its row, such as what it cost."""


@dataclass(frozen=True)
class Column:
    """A column's title, and whether it holds numbers, which are aligned to the right."""

    title: str
    numeric: bool


@dataclass(frozen=True)
class Row:
    """Cells, and what sets the row apart: naive | bad | ''."""

    cells: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Table:
    """A caption over columns and rows of text; `look` is '' or key (one row of large figures)."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    look: str = ""
    note: str = ""
    """Note on the columns for the reader."""

    def markdown(self) -> str:
        """Return the table as GitHub shows it; what could be markup in a cell is escaped."""
        lines = [[column.title for column in self.columns], *(row.cells for row in self.rows)]
        text = ["| " + " | ".join(map(escape, line)) + " |" for line in lines]
        rule = "|" + "|".join("---:" if column.numeric else "---" for column in self.columns) + "|"
        note = ["", escape(self.note)] if self.note else []
        return "\n".join([f"**{escape(self.caption)}**", "", text[0], rule, *text[1:], *note])


def table(
    caption: str,
    lines: Sequence[Mapping[str, str]],
    *,
    text: Collection[str],
    kinds: Sequence[str] = (),
    look: str = "",
    note: str = "",
) -> Table:
    """Return a table of lines {title: cell}; columns outside `text` hold numbers."""
    titles = list(dict.fromkeys(title for line in lines for title in line))
    cells = [tuple(line.get(title, NOTHING) for title in titles) for line in lines]
    rows = [Row(row, kind) for row, kind in zip(cells, kinds or [""] * len(lines), strict=True)]
    return Table(caption, tuple(Column(title, title not in text) for title in titles), tuple(rows), look, note)


def notes(records: Sequence[RunRecord]) -> list[str]:
    """Return the warnings of the sources about themselves, each once: rounding, survivorship."""
    return list(dict.fromkeys(str(note) for record in records for note in record.data.get("notes") or ()))


def data_cards(records: Sequence[RunRecord]) -> list[Table]:
    """Return the sets of prices and splits that the runs used, newest first, three to a table."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.data.get("source"):
            key = json.dumps([record.data.get(name) for name in ("source", "sha256", "splits")], default=str)
            groups.setdefault(key, []).append(record)
    cards = [_data_card(alike) for alike in reversed(groups.values())]
    card_tables = []
    for start in range(0, len(cards), CARDS):
        some = cards[start : start + CARDS]
        facts = dict.fromkeys(fact for card in some for fact in card)
        titles = [f"Set {number}" for number in range(start + 1, start + 1 + len(some))]
        lines = [
            {"Fact": fact} | {title: card.get(fact) or NOTHING for title, card in zip(titles, some, strict=True)}
            for fact in facts
        ]
        card_tables.append(table("Data of the runs", lines, text=lines[0]))
    return card_tables


def no_cells(run: str | None, *, windows: bool = False) -> dict[str, str]:
    """Return no further columns."""
    del run, windows
    return {}


def runs(records: Sequence[RunRecord], more: Cells = no_cells) -> Table:
    """Return a table of the newest runs."""
    newest = list(reversed(records))[:RUNS]
    lines = [
        {
            "Run": record.name,
            "Experiment": record.experiment,
            "Arm": formatting.arm(record.arm),
            "Status": formatting.outcome(record.status, shorten(record.reason)),
            "Started (UTC)": f"{record.started:%Y-%m-%d %H:%M}",
            "Seconds": fixed(record.seconds.total, 1),
            "Device": record.device,
            "Workers": str(record.num_workers or NOTHING),
            **more(record.name),
            "Git": record.versions.get("git", NOTHING),
            "Fingerprint": record.fingerprint,
        }
        for record in newest
    ]
    text = lines[0].keys() - {"Seconds", "Workers", *more(None)} if lines else ()
    caption = (
        "All runs, last ended first" if len(newest) == len(records) else f"The newest {RUNS} of {len(records):,} runs"
    )
    commits = {record.versions.get("git") for record in newest}
    several = f"These runs are of {len(commits)} versions of the code. " if len(commits) > 1 else ""
    note = (
        f"{several}Git: the commit of the code; -dirty: with changes that no commit has. Fingerprint: a hash of the "
        "settings that decide the numbers."
    )
    if any(shorten(record.reason) != record.reason for record in newest):
        note += " A reason that ends in \u2026 is cut; record.json in the run's folder has all of it."
    return table(caption, lines, text=text, kinds=[_bad(record.status) for record in newest], note=note)


def shorten(reason: str) -> str:
    """Return why a run failed, in one line of a table."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON else f"{line[: REASON - 1].rstrip()}\u2026"


def name_runs(names: Sequence[str]) -> str:
    """Return 'a, b, c': NAMES of them at most."""
    return ", ".join([*names[:NAMES], *(["..."] if len(names) > NAMES else [])])


def list_earlier(newest: str, earlier: Sequence[str], nouns: tuple[str, str]) -> list[str]:
    """Return a remark that only the newest is shown, if there are others; `nouns`: its name, singular and plural."""
    if not earlier:
        return []
    count = f"1 earlier {nouns[0]} is" if len(earlier) == 1 else f"{len(earlier):,} earlier {nouns[1]} are"
    return [f"This is the newest {nouns[0]}, {newest}. {count} not shown in detail: {name_runs(earlier)}."]


def throughput(records: Sequence[RunRecord]) -> list[Table]:
    """Return how fast the newest runs trained, and what share of their devices' speed that is; nothing without one."""
    lines = [
        {
            "Run": record.name,
            "Device": record.device,
            "Workers": str(record.num_workers or NOTHING),
            "Parameters": f"{speed.parameters:,}",
            "Per second": approx(speed.per_second),
            "Of": speed.unit,
            "MFLOP per window": fixed(speed.flops_per_window / 1e6, 1),
            "Matrix product, GFLOP/s": approx(speed.matmul_flops_per_second / 1e9),
            "MFU": percent(speed.mfu),
            "MFU, data sheet": percent(speed.data_sheet_mfu),
        }
        for record in list(reversed(records))[:RUNS]
        if (speed := record.throughput)
    ]
    note = (
        "MFU: operations of forward and backward passes as a share of those of a matrix product on the same devices, "
        "and of the data sheet."
    )
    return [table("Speed of training", lines, text=("Run", "Device", "Of"), note=note)] if lines else []


def escape(text: str) -> str:
    """Return text without markup, for Markdown: a name or a ticker makes no link, image, emphasis or cell."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\|`*\[\]]", r"\\\g<0>", plain)


def _data_card(alike: list[RunRecord]) -> dict[str, str]:
    # Copies multiply the training windows: the smallest run says how many there are of the original.
    record = min(alike, key=lambda run: run.config.get("data", {}).get("multiplier", 1))
    data = record.data
    splits = {name: " to ".join(map(str, span)) for name, span in (data.get("splits") or {}).items()}
    windows = [f"{count:,} {name}" for name, count in (data.get("windows") or {}).items()]
    sizes = {run.config.get("data", {}).get("multiplier", 1): run.data.get("windows") or {} for run in alike}
    copies = [f"{TIMES}{times}: {sizes[times].get('train', 0):,} train" for times in sorted(sizes) if times > 1]
    return {
        "Source": str(data["source"]),
        "Tickers": ", ".join(data.get("tickers") or []),
        "Dates": f"{data['first_date']} to {data['last_date']}" if "first_date" in data else "",
        "Prices": fixed(data.get("rows"), 0),
        "Features": ", ".join(data.get("features") or []),
        **{f"{name.capitalize()} split": span for name, span in splits.items()},
        "Windows": ", ".join(windows),
        **({"With copies": ", ".join(copies)} if copies else {}),
        "Repairs": "; ".join(map(str, data.get("repairs") or [])) or "none",
        "SHA-256 of the data": f"{data['sha256'][:16]}..." if data.get("sha256") else "",
        "Used by": formatting.some(len(alike), "run"),
    }


def _bad(status: str) -> str:
    return "" if status == "ok" else "bad"
