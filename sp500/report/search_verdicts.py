"""What the search found, how much sooner Ray knew it, and how far its best can be trusted, in sentences.

Every sentence is computed from the findings, and says "slower", "worse" or "cannot be told" where that is so.
"""

from __future__ import annotations

from typing import Any

from sp500.report import scores, words
from sp500.report.search import Search
from sp500.report.words import TIMES, fixed, gap, percent, seconds, some

YEAR = 252
"""Trading days."""
SURE = 0.95
TOLD = ("mse", "accuracy", "directional_accuracy", "sharpe")
"""Metrics that are told of both splits; the table has all."""


def sentences(found: Search) -> list[str]:
    """All that is to be said; nothing where no search ran."""
    if found.told is None:
        return []
    return [sooner(found), *best(found), *splits(found), *luck(found)]


def sooner(found: Search) -> str:
    """Which side was sooner, and whether both found the same."""
    numbers = found.compared
    first, second = numbers["sequential_seconds"], numbers["parallel_seconds"]
    configs = some(numbers["configs"] or 0, "config")
    if first is None or second is None:
        return _one_side(found, configs)
    speedup, cores = first / second, f", {some(found.cores, 'core')}" if found.cores else ""
    share = f", efficiency {percent(numbers['efficiency'], 0)} per core" if numbers["efficiency"] is not None else ""
    times = f"({seconds(second)} against {seconds(first)}{cores}{share})"
    if f"{speedup:.1f}" == "1.0":
        verdict = f"Ray Tune took about as long for the same {configs} as one after another {times}"
    elif speedup > 1:
        verdict = f"Ray Tune finished the same {configs} {speedup:.1f}{TIMES} sooner than one after another {times}"
    else:
        longer = f"{1 / speedup:.1f}{TIMES} as long as one after another"
        verdict = f"Ray Tune was slower: the same {configs} took {longer} {times}"
    return f"{verdict}{_same(numbers)}."


def best(found: Search) -> list[str]:
    """How many configs were tried and how many failed, and which was chosen."""
    chosen, configs = found.summary.get("best"), found.compared["configs"]
    if not chosen or not configs:
        return []
    failed = f", {found.failed:,} of which failed" if found.failed else ""
    settings = words.config(chosen["overrides"]) or "the base settings"
    naive = f", {percent(chosen.get('score'), 2)} of that of always answering zero" if found.relative else ""
    loss = f"validation loss {chosen['valid_loss']:.6g}{naive}"
    return [f"Best of {some(configs, 'config')} tried{failed}: {settings} ({loss})."]


def splits(found: Search) -> list[str]:
    """The chosen config on validation beside the test."""
    metrics = found.told.metrics if found.told else {}
    valid, test = metrics.get("valid") or {}, metrics.get("test") or {}
    told = [
        f"{title} {show(valid[key])} against {show(test[key])}"
        for title, key, show in scores.columns([valid, test])
        if key in TOLD and valid.get(key) is not None and test.get(key) is not None
    ]
    return [f"Validation, which chose it, against the test, looked at once: {'; '.join(told)}."] if told else []


def luck(found: Search) -> list[str]:
    """The deflated Sharpe ratio in words; nothing where nothing was traded."""
    deflated = found.summary.get("deflated_sharpe")
    valid = (found.told.metrics if found.told else {}).get("valid") or {}
    if not deflated:
        traded = valid.get("sharpe") is not None
        return ["Whether its Sharpe ratio is luck cannot be told: this search kept too few of its trials'."] * traded
    horizon = int(found.told.config.get("data", {}).get("horizon", 1)) if found.told else 1
    expected, probability = deflated["expected_max"], deflated["probability"]
    own = valid.get("daily_sharpe")
    has = f"; the chosen one has {_per_day(own, horizon)}" if own is not None else ""
    after = (
        f"After {deflated['trials']:,} tries a Sharpe ratio of {_per_day(expected, horizon)} would be expected of the "
        f"best on validation by luck alone{has}."
    )
    if probability is None:
        return [after]
    verdict = f"{'above' if probability >= SURE else 'below'} the usual {percent(SURE, 0)}"
    share = "above 99.9%" if probability > 0.999 else "below 0.1%" if probability < 0.001 else percent(probability)
    sure = f"The probability that its true ratio is above zero after that is {share}, {verdict}"
    return [f"{after} {sure} (deflated Sharpe ratio)."]


def _one_side(found: Search, configs: str) -> str:
    numbers = found.compared
    taken = {"on Ray Tune": numbers["parallel_seconds"], "one after another": numbers["sequential_seconds"]}
    if len(found.sides) > 1:
        return (
            f"{configs} ran both ways, one with an interruption, so their seconds cannot be compared{_same(numbers)}."
        )
    ran = [f" {side} in {seconds(value)}" for side, value in taken.items() if value is not None]
    if ran:
        return f"{configs} ran{ran[0]}; the other side has not run, so nothing can be compared."
    return f"{configs} ran with an interruption, so their seconds tell nothing."


def _same(numbers: dict[str, Any]) -> str:
    same, distance = numbers["same_best"], numbers["metric_gap"]
    if same is None:
        return ""
    found = f", and found {'the same' if same else 'another'} best config"
    if distance is None:
        return found
    agree = "are equal" if not distance else f"{'agree within' if same else 'differ by'} {gap(distance)}"
    return f"{found}; the best validation losses {agree}"


def _per_day(sharpe: float, horizon: int) -> str:
    """A ratio per trade, and per year."""
    each = "per day" if horizon == 1 else f"per trade of {horizon} days"
    return f"{fixed(sharpe, 3)} {each} ({fixed(sharpe * (YEAR / horizon) ** 0.5)} a year)"
