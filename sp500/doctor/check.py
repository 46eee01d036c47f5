"""The result of one check: fine, wrong with a way out, or skipped; and how the results are printed.

ok       ray            2.60.0
wrong    token file     /home/me/.ray/auth_token has mode 0644, so others can read it: chmod 600 ...
skipped  ray address    no RAY_ADDRESS and no --address
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sp500.errors import attempt


class State(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    state: State
    found: str
    """The state that was found, on one line. For a skipped check: the reason."""
    advice: str = ""
    """The remedy, if something is wrong."""
    code: int = 1
    """Exit code of doctor, if something is wrong."""


# The name of what is checked, and the function that checks it.
Probe = tuple[str, Callable[[], Sequence[Check]]]

STYLES = {State.OK: "green", State.WRONG: "bold red", State.SKIPPED: "dim"}
GAP = 2


def ok(name: str, found: str) -> Check:
    """Return a check with nothing to do."""
    return Check(name, State.OK, found)


def wrong(name: str, found: str, advice: str, code: int = 1) -> Check:
    """Return a check with something to do."""
    return Check(name, State.WRONG, found, advice, code)


def skipped(name: str, why: str) -> Check:
    """Return a check that was skipped."""
    return Check(name, State.SKIPPED, why)


def run_probes(probes: Iterable[Probe]) -> list[Check]:
    """Run all checks, in order. A probe that fails is itself a check that is wrong, and hides none of the others."""
    checks: list[Check] = []
    for name, probe in probes:
        checks += attempt(probe, partial(_report_failure, name))
    return checks


def _report_failure(name: str, error: Exception) -> Sequence[Check]:
    why = " ".join(f"{type(error).__name__}: {error}".split())
    return [wrong(name, f"the check failed ({why})", "the other checks may show the reason")]


def exit_code(checks: Iterable[Check]) -> int:
    """Return 0 if nothing is wrong; else the largest code of what is."""
    return max((check.code for check in checks if check.state == State.WRONG), default=0)


def plain(checks: Sequence[Check]) -> Mapping[str, object]:
    """Return the checks as data for --json."""
    rows = [{key: value for key, value in asdict(check).items() if key != "code"} for check in checks]
    return {"checks": rows, "ok": all(check.state != State.WRONG for check in checks)}


def text(checks: Sequence[Check], console: Console) -> str:
    """Return the checks for a reader, and their count: one line each, or a table as wide as the terminal."""
    lines = _table(checks, console) if console.is_terminal else "\n".join(_lines(checks))
    counts = {state: sum(check.state == state for check in checks) for state in (State.WRONG, State.OK, State.SKIPPED)}
    return f"{lines}\n\n" + ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _lines(checks: Sequence[Check]) -> Iterable[str]:
    width = max(len(check.name) for check in checks) + GAP
    first = max(map(len, State)) + GAP
    for check in checks:
        advice = f": {check.advice}" if check.advice else ""
        yield f"{check.state:<{first}}{check.name:<{width}}{check.found}{advice}"


def _table(checks: Sequence[Check], console: Console) -> str:
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        style = STYLES[check.state]
        cell = Text(check.found, style="dim" if check.state == State.SKIPPED else "")
        if check.advice:
            cell.append(f"\n{check.advice}", style="bold")
        table.add_row(Text(check.state, style=style), Text(check.name), cell)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
