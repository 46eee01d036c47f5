"""The settings in which chosen runs differ, and what came of each, next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp500 import formatting
from sp500.report.section import Runs, Section
from sp500.report.tables import Table, table
from sp500.runs.record import RunRecord

MOST = 8
"""Runs side by side: the newest."""
PLACES = ("io.",)
"""Settings that name places."""


class DifferenceSection(Section):
    """Of runs that the user chose: the settings in which they differ."""

    name, title = "differences", "Settings that differ"

    def collect(self, runs: Runs) -> Table | None:
        """Return the table; None for a whole folder and for one run."""
        return compare(runs.records[-MOST:]) if runs.chosen and len(runs.records) > 1 else None

    def parts(self, found: Table | None, runs: Runs) -> Sequence[Any]:
        """Return the table."""
        return [found] if found else []


def compare(records: Sequence[RunRecord]) -> Table:
    """Return a row per setting that differs, and rows of results; a column per run."""
    settings = [formatting.flatten(record.config) for record in records]
    keys = dict.fromkeys(key for each in settings for key in each if not key.startswith(PLACES))
    differing = [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]
    rows = [(key, [formatting.setting(each.get(key)) for each in settings]) for key in differing]
    rows += [
        ("arm", [formatting.arm(record.arm) for record in records]),
        ("status", [formatting.outcome(record.status) for record in records]),
        ("seconds", [formatting.seconds(record.seconds.total) for record in records]),
        ("validation loss", [formatting.fixed(record.best_loss, 6) for record in records]),
    ]
    lines = [
        {"Setting": key} | dict(zip([record.name for record in records], values, strict=True)) for key, values in rows
    ]
    return table("Settings that differ, and results", lines, text=lines[0])
