"""Comparison of samplers: searches of one space and as many configs, by more than one method.

A single search is an anecdote; several seeds of each method show whether a difference is more than their spread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from sp500.formatting import NOTHING, fixed, some
from sp500.report.search.results import name_measure, read_best
from sp500.report.tables import Table, table
from sp500.runs.record import RunRecord


@dataclass(frozen=True)
class Contest:
    """Searches that are alike but for their method and their seed."""

    named: str
    measure: str
    """What they compare by; '' if it is the validation loss."""
    sign: int
    """-1 if the highest value is the best."""
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    """The best value of each seed, by method."""


def contests(records: Sequence[RunRecord]) -> list[Contest]:
    """Return what was searched with two methods at least: space, configs, data, epochs and measure alike.

    A seed that was searched again by the same method counts as it was last.
    """
    groups: dict[str, Contest] = {}
    for record in records:
        search = record.search
        if search is None or record.status != "ok" or record.arm == "all":
            continue
        named, (measure, sign) = f"{search['space']}, {some(search['configs'], 'config')}", name_measure(record)
        program = record.fingerprint if search.get("metric") else ""
        facts = [named, measure, sign, program, record.config.get("data"), _epochs(record)]
        contest = groups.setdefault(json.dumps(facts, sort_keys=True, default=str), Contest(named, measure, sign))
        contest.values.setdefault(search["method"], {})[record.seed] = read_best(record, search)
    return [contest for contest in groups.values() if len(contest.values) > 1]


def methods(records: Sequence[RunRecord]) -> list[Table]:
    """Return a table for each contest: what each method found, over its seeds."""
    return [_table(contest) for contest in contests(records)]


def _table(contest: Contest) -> Table:
    random = contest.values.get("random", {})
    lines = []
    for method, by_seed in sorted(contest.values.items(), key=lambda item: contest.sign * mean(item[1].values())):
        both = sorted({*by_seed} & {*random}) if method != "random" else []
        won = sum(contest.sign * by_seed[seed] < contest.sign * random[seed] for seed in both)
        lines.append(
            {
                "Method": method,
                "Searches": str(len(by_seed)),
                "Mean": fixed(mean(by_seed.values()), 6),
                "Standard deviation": fixed(stdev(by_seed.values()) if len(by_seed) > 1 else None, 6),
                "Lowest": fixed(min(by_seed.values()), 6),
                "Highest": fixed(max(by_seed.values()), 6),
                "Better than random": f"{won} of {some(len(both), 'seed')}" if both else NOTHING,
            }
        )
    return table(f"Best {contest.measure or 'validation loss'} by method: {contest.named}", lines, text=("Method",))


def _epochs(record: RunRecord) -> object:
    return (record.config.get("train") or {}).get("epochs")
