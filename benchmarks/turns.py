"""Programs measured in turns, one after the other, so that what the machine does meanwhile meets all of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sp500.errors import SP500Error

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
Figures = dict[str, float]
"""What one program gave in one turn: seconds, losses, requests per second."""


@dataclass(frozen=True)
class Arm:
    """One program. `measure` runs it in an empty folder and returns its figures for each of its tables."""

    name: str
    tables: tuple[str, ...]
    measure: Callable[[Path], Mapping[str, Figures]]
    ours: bool = False
    another: str = ""
    """What it does in place of training the same model; its losses are not compared then."""


@dataclass(frozen=True)
class Table:
    """What is compared: a figure of each program, with that of `reference`, which is ours."""

    name: str
    figure: str
    reference: str
    higher_is_better: bool = False
    equal: Mapping[str, float] = field(default_factory=dict)
    """Figures that programs of the same model share with the reference, each with the largest relative difference."""


@dataclass(frozen=True)
class Part:
    """One part of the benchmark."""

    arms: Sequence[Arm]
    tables: Sequence[Table]


@dataclass
class Rows:
    """What an arm gave in each turn, and why there is no more."""

    arm: Arm
    turns: list[Mapping[str, Figures]] = field(default_factory=list)
    reason: str = ""

    def of(self, table: Table) -> list[Figures]:
        """Return the figures of one table."""
        return [turn[table.name] for turn in self.turns]


def run_turns(part: Part, turns: int, folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure all arms in each turn, and return the tables as plain data. An arm that fails is not tried again."""
    rows = [Rows(arm) for arm in part.arms]
    for turn in range(turns):
        for number, row in enumerate(rows):
            if row.reason:
                continue
            (own := folder / f"{turn}-{number}").mkdir()
            try:
                row.turns.append(row.arm.measure(own))
            except (SP500Error, OSError, subprocess.SubprocessError) as error:
                row.reason = str(error)
            finally:
                end_processes(own)
            say(f"turn {turn + 1}, {row.arm.name}: {row.reason or json.dumps(row.turns[-1])}")
    return [_fill(table, [row for row in rows if table.name in row.arm.tables]) for table in part.tables]


def _fill(table: Table, rows: Sequence[Rows]) -> dict[str, Any]:
    reference = next(row.of(table) for row in rows if row.arm.name == table.reference)
    lines = [
        {
            "name": row.arm.name,
            "ours": row.arm.ours,
            "another": row.arm.another,
            "reason": row.reason,
            "value": spread([turn[table.figure] for turn in row.of(table)]),
            "times": spread(_compare(table, row.of(table), reference)),
            "unequal": [] if row.arm.another else _find_unequal(table, row.of(table), reference),
            "turns": row.of(table),
        }
        for row in rows
    ]
    return {"name": table.name, "figure": table.figure, "reference": table.reference, "rows": lines}


def _compare(table: Table, turns: list[Figures], reference: list[Figures]) -> list[float]:
    """Return how many times ours is as fast in each turn."""
    pairs = [(turn[table.figure], ours[table.figure]) for turn, ours in zip(turns, reference, strict=False)]
    return [ours / value if table.higher_is_better else value / ours for value, ours in pairs]


def _find_unequal(table: Table, turns: list[Figures], reference: list[Figures]) -> list[str]:
    """Return the figures that should be equal and are not."""
    if not turns or not reference:
        return []
    medians = {
        name: [statistics.median(turn[name] for turn in of) for of in (turns, reference)] for name in table.equal
    }
    return [name for name, (value, ours) in medians.items() if abs(value - ours) > table.equal[name] * abs(ours)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, lowest and highest value; None of nothing."""
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def execute(argv: Sequence[str], folder: Path, *, tree: Path = ROOT) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a program in `folder`, with the project in `tree`; return the seconds from start to exit, and its output.

    Raises SP500Error with its last words if it fails.
    """
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own argv
        [sys.executable, *argv], cwd=folder, env=environment(folder, tree), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SP500Error(f"exit code {done.returncode}: {' '.join(done.stderr.split()[-40:])}")
    return seconds, done


def environment(folder: Path, tree: Path = ROOT) -> dict[str, str]:
    """Return the environment of a program: no cluster, home and temporary files next to its folder."""
    others = ("RAY_", "SP500_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    places = dict.fromkeys(("HOME", "TMPDIR", "RAY_TMPDIR"), str(folder.parent))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "BENTOML_DO_NOT_TRACK": "True", "OMP_NUM_THREADS": "1"}
    return {**kept, **places, **quiet, "PYTHONPATH": str(tree)}


def end_processes(folder: Path) -> None:
    """Kill what programs of `environment(folder)` have left: Ray's processes may outlive the program that used them."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder.parent):
                process.kill()
