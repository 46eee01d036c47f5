"""The section on programs of the user's: what one process and workers of Ray took for the same program.

A program decides itself what a worker does, so its arms are compared as they ran, and a speed-up is claimed only if
they did the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp500.formatting import NOTHING, TIMES, fixed, join, seconds, size, some
from sp500.report.section import Runs, Section
from sp500.report.tables import table
from sp500.runs.experiments import PROGRAM
from sp500.runs.record import RunRecord

BATCH = "The script decides its batch per worker, so more workers may train on larger batches in all, to other numbers."


@dataclass(frozen=True)
class ProgramRuns:
    """One program, and its newest run with each number of workers, fewest first."""

    command: str
    runs: Sequence[RunRecord]


class ProgramSection(Section):
    """Programs of the user's that ran with --command."""

    name, title = "programs", "Your programs"

    def collect(self, runs: Runs) -> list[ProgramRuns]:
        """Return the programs by fingerprint, the one that ran last first."""
        newest: dict[str, dict[int, RunRecord]] = {}
        for record in runs.records:
            if record.experiment == PROGRAM and record.program:
                by_workers = newest.setdefault(record.fingerprint, {})
                by_workers[record.num_workers] = record
                newest[record.fingerprint] = newest.pop(record.fingerprint)
        return [
            ProgramRuns(
                next(iter(by_workers.values())).config["command"], [by_workers[key] for key in sorted(by_workers)]
            )
            for by_workers in reversed(newest.values())
        ]

    def sentences(self, found: list[ProgramRuns], runs: Runs) -> list[str]:
        """Return a sentence per program."""
        return list(map(_describe, found))

    def parts(self, found: list[ProgramRuns], runs: Runs) -> tuple[Any, ...]:
        """Return a table per program."""
        return tuple(
            table(
                program.command,
                [_row(record) | runs.costs.cells(record.name) for record in program.runs],
                text=("Arm", "Run"),
                note="Seconds: of the program itself. Whole run: with the start of Ray. Memory: peak of the largest "
                f"rank with its processes. {BATCH}",
            )
            for program in found
        )

    def numbers(self, found: list[ProgramRuns], runs: Runs) -> Mapping[str, Any]:
        """Return each run of each program."""
        rows = [
            {"command": program.command, "runs": [_numbers(record, program.runs[0]) for record in program.runs]}
            for program in found
        ]
        return {"programs": rows} if rows else {}


def speedup(record: RunRecord, base: RunRecord) -> float | None:
    """Return how many times as fast a run was as another; None unless both did the same epochs and samples."""
    ours, theirs = record.program, base.program
    if not ours or not theirs or record is base or ours["value"] is None:
        return None
    alike = (ours["epochs"], ours["samples"]) == (theirs["epochs"], theirs["samples"])
    return theirs["seconds"] / ours["seconds"] if alike and ours["seconds"] else None


def _describe(program: ProgramRuns) -> str:
    """Return what a program took by its workers, and how many times as fast more of them were at the same work."""
    took = []
    for record in program.runs:
        times = speedup(record, program.runs[0])
        faster = f" ({times:.2f}{TIMES} as fast for the same epochs and samples)" if times else ""
        took.append(f"{seconds(record.program['seconds'] if record.program else None)} {_arm(record)}{faster}")
    return f"{program.command}: {join(took)}."


def _arm(record: RunRecord) -> str:
    return f"on {some(record.num_workers, 'worker')} of Ray" if record.num_workers else "in one process"


def _row(record: RunRecord) -> dict[str, str]:
    assert record.program
    found = record.program
    return {
        "Arm": _arm(record),
        "Seconds": seconds(found["seconds"]),
        "Whole run": seconds(record.seconds.total),
        "CPU seconds": fixed(found["cpu_seconds"], 1),
        "Memory": size(max(found["memory_bytes"])),
        "Last epoch": NOTHING if found["value"] is None else str(found["epochs"]),
        "Samples": fixed(found["samples"], 0),
        f"Last {found['metric']}": fixed(found["value"], 6),
        "Run": record.name,
    }


def _numbers(record: RunRecord, base: RunRecord) -> dict[str, Any]:
    return {
        "run": record.name,
        "num_workers": record.num_workers,
        "total_seconds": record.seconds.total,
        "speedup": speedup(record, base),
        **(record.program or {}),
    }
