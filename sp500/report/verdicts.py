"""What models and searches found, in sentences.

Every sentence is computed from the findings, and says "slower", "worse" or "cannot be told" where that is so.
"""

from __future__ import annotations

from typing import Any

from sp500.report.findings import Search
from sp500.report.models import Group
from sp500.report.words import (
    METRIC,
    NOTHING,
    TIMES,
    against_naive,
    gap,
    naive_name,
    percent,
    seconds,
    some,
)


def models(group: Group) -> str:
    """How many models beat the best naive forecast, with an interval that excludes zero."""
    # The same settings in two arms are one model.
    judged = {row["fingerprint"]: row for row in group.models if row["improvement"]}
    if not judged:
        return _accuracies(group)
    first = next(iter(judged.values()))["improvement"]
    rival = f"the best naive forecast ({naive_name(first['over'], group.task)})"
    contest = f"{rival} on {METRIC.get(first['metric'], first['metric'])}"
    told = [(row, word) for row in judged.values() if (word := against_naive(row["improvement"])) != NOTHING]
    if not told:
        part = f"without intervals, none of {some(len(judged), 'model')} can be said to beat"
        return f"{group.subject}: {part} {contest}."
    better = [row for row, word in told if word == "better"]
    worse = sum(word == "worse" for _, word in told)
    if better:
        gains = "; ".join(f"{row['name']} {_gain(row['improvement'])}" for row in better)
        part = f"{len(better)} of {some(len(told), 'model')} {'beats' if len(better) == 1 else 'beat'}"
        verdict = f"{part} {contest} with 95% confidence: {gains}. Luck alone does so for one model in 40."
    else:
        part = "the one model does not beat" if len(told) == 1 else f"none of {len(told)} models beats"
        usual = ", as is usual for daily returns" if _is_daily(group) else ""
        verdict = f"{part} {contest} with 95% confidence{usual}."
    once = " Settings that ran in two arms count once." if len(judged) < len(group.models) else ""
    return f"{group.subject}: {verdict} {_worse(worse, len(told))}".strip() + once


def search(found: Search) -> str:
    """Which side was sooner, and whether both found the same."""
    numbers = found.numbers
    first, second = numbers["sequential_seconds"], numbers["parallel_seconds"]
    configs = some(numbers["configs"] or 0, "config")
    failed = f" {some(found.failed, 'config')} failed." if found.failed else ""
    if first is None or second is None:
        if first is second:
            return "No search has run yet."
        side = "on Ray Tune" if first is None else "one after another"
        ran = f"{configs} ran {side} in {seconds(second if first is None else first)}"
        return f"{ran}; the other side has not run, so nothing can be compared.{failed}"
    speedup, cores = first / second, f", {some(found.cores, 'core')}" if found.cores else ""
    share = f", {percent(numbers['efficiency'], 0)} of ideal" if numbers["efficiency"] is not None else ""
    times = f"({seconds(second)} against {seconds(first)}{cores}{share})"
    if f"{speedup:.1f}" == "1.0":
        verdict = f"Ray Tune took about as long for the same {configs} as one after another {times}"
    elif speedup > 1:
        verdict = f"Ray Tune finished the same {configs} {speedup:.1f}{TIMES} sooner than one after another {times}"
    else:
        longer = f"{1 / speedup:.1f}{TIMES} as long as one after another"
        verdict = f"Ray Tune was slower: the same {configs} took {longer} {times}"
    return f"{verdict}{_same(numbers)}.{failed}"


def _worse(count: int, of: int) -> str:
    if not count:
        return ""
    if of == 1:
        return "It is reliably worse."
    return f"{count} {'is' if count == 1 else 'are'} reliably worse."


def _same(numbers: dict[str, Any]) -> str:
    same, distance = numbers["same_best"], numbers["metric_gap"]
    if same is None:
        return ""
    found = f", and found {'the same' if same else 'another'} best config"
    if distance is None:
        return found
    agree = "are equal" if not distance else f"{'agree within' if same else 'differ by'} {gap(distance)}"
    return f"{found}; the best validation losses {agree}"


def _accuracies(group: Group) -> str:
    best = group.models[0]
    parts = [f"{best['name']} reaches {percent(best['test'].get('accuracy'))} test accuracy"]
    for row in group.naive:
        parts.append(f"{percent(row['test'].get('accuracy'))} for the {naive_name(row['name'], group.task)}")
    limit = best["test"].get("best_possible_accuracy")
    known = f"; {percent(limit)} is the best possible" if limit is not None else ""
    return f"{group.subject}: {' against '.join(parts)}{known}."


def _gain(improvement: dict[str, Any]) -> str:
    low, high = (percent(improvement[end], sign=True) for end in ("low", "high"))
    return f"{percent(improvement['value'], sign=True)} ({low} to {high})"


def _is_daily(group: Group) -> bool:
    """Whether the group forecasts the next day of real prices."""
    return group.task != "synthetic" and "splits" in group.newest.data and group.horizon == 1
