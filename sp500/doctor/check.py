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


def text(checks: Sequence[Check]) -> str:
    """Return the checks for a reader, one line each, and their count."""
    names, states = max(len(check.name) for check in checks) + GAP, max(map(len, State)) + GAP
    lines = [
        f"{check.state:<{states}}{check.name:<{names}}{': '.join(filter(None, (check.found, check.advice)))}"
        for check in checks
    ]
    counts = {state: sum(check.state == state for check in checks) for state in (State.WRONG, State.OK, State.SKIPPED)}
    return "\n".join([*lines, "", ", ".join(f"{count} {state}" for state, count in counts.items() if count)])
