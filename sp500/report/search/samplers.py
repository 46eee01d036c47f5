"""Comparison of samplers: searches of one space and as many configs, by more than one method.

A single search is an anecdote; several seeds of each method show whether a difference is more than their spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from sp500.formatting import fixed, some
from sp500.report.tables import Table, table
from sp500.runs.record import RunRecord

Losses = dict[str, dict[int, float]]
"""Best validation loss of each seed, by method."""


def contests(records: Sequence[RunRecord]) -> dict[str, Losses]:
    """Return losses by what was searched: space, configs, data and epochs alike, with two methods at least.

    A seed that was searched again by the same method counts as it was last.
    """
    groups: dict[tuple[str, str], Losses] = {}
    for record in records:
        search = record.search
        if search is None or record.status != "ok" or record.arm == "all":
            continue
        named = f"{search['space']}, {some(search['configs'], 'config')}"
        alike = json.dumps(
            [*_programs(record), record.config.get("data"), _epochs(record)], sort_keys=True, default=str
        )
        losses = groups.setdefault((named, alike), {}).setdefault(search["method"], {})
        losses[record.seed] = search["best"]["valid_loss"]
    return {named: losses for (named, _), losses in groups.items() if len(losses) > 1}


def methods(records: Sequence[RunRecord]) -> list[Table]:
    """Return a table for each contest: what each method found, over its seeds."""
    return [_table(named, losses) for named, losses in contests(records).items()]


def verdicts(records: Sequence[RunRecord]) -> list[str]:
    """Return, for each contest that random search took part in, whether another method did better."""
    lines = []
    for named, losses in contests(records).items():
        lines += [
            _verdict(named, method, losses[method], losses["random"])
            for method in losses
            if method != "random" and "random" in losses
        ]
    return lines


def _verdict(named: str, method: str, losses: Mapping[int, float], random: Mapping[int, float]) -> str:
    both = sorted(set(losses) & set(random))
    won = sum(losses[seed] < random[seed] for seed in both)
    how = "found no lower loss than" if mean(losses.values()) >= mean(random.values()) else "found a lower loss than"
    paired = f"; lower in {won} of {some(len(both), 'seed')} that both searched" if both else ""
    return f"{named}: {method} {how} random search ({_spread(losses)} against {_spread(random)}{paired})."


def _table(named: str, losses: Losses) -> Table:
    lines = [
        {
            "Method": method,
            "Searches": str(len(by_seed)),
            "Mean": fixed(mean(by_seed.values()), 6),
            "Standard deviation": fixed(stdev(by_seed.values()) if len(by_seed) > 1 else None, 6),
            "Lowest": fixed(min(by_seed.values()), 6),
            "Highest": fixed(max(by_seed.values()), 6),
        }
        for method, by_seed in sorted(losses.items(), key=lambda item: mean(item[1].values()))
    ]
    return table(f"Best validation loss by method: {named}", lines, text=("Method",))


def _spread(by_seed: Mapping[int, float]) -> str:
    middle = fixed(mean(by_seed.values()), 6)
    return f"{middle} ± {fixed(stdev(by_seed.values()), 6)}" if len(by_seed) > 1 else middle


def _programs(record: RunRecord) -> list[object]:
    """Return what tells a program of the user's from another; nothing of a search of configs."""
    return [record.fingerprint] if "command" in record.config else []


def _epochs(record: RunRecord) -> object:
    return (record.config.get("train") or {}).get("epochs")
