"""Verdicts on models, in sentences.

Every sentence is computed from the findings, and says "slower", "worse" or "cannot be told" if so.
"""

from __future__ import annotations

from collections import Counter

from sp500.formatting import KEPT, METRIC, NOTHING, against_naive, percent, some
from sp500.report.models.results import Group
from sp500.runs.details import Elsewhere
from sp500.runs.results import Improvement
from sp500.suspicion import find_signs, warn

OTHERS = {"worse": "worse", "unclear": "unclear", KEPT: "kept the naive forecast", NOTHING: "without an interval"}
"""Words for the verdicts on models that are not better."""


def models(group: Group) -> str:
    """Return how many models beat the best naive forecast, after a warning if that is too good to be true."""
    return find_suspects(group) + _compare(group)


def tries(name: str, elsewhere: Elsewhere) -> str:
    """Return on how many windows forecasts made elsewhere were judged, and what luck gives to the best of the tries."""
    chance, sharpe = elsewhere["chance"], elsewhere["sharpe_probability"]
    rest = elsewhere["windows"] - elsewhere["judged"]
    missing = f"; {rest:,} test windows have no forecast" if rest else ""
    text = f"{name} was made elsewhere: gaps and leaks not checked. Judged on {elsewhere['judged']:,} windows{missing}."
    if chance is not None:
        best = "One try" if elsewhere["tries"] == 1 else f"The best of {elsewhere['tries']:,} tries"
        text += f" {best} without skill improves as much with probability {chance:.2g}."
    if sharpe is not None:
        text += f" After as many tries the excess Sharpe ratio is above 0 with probability {percent(sharpe)}."
    return text


def _compare(group: Group) -> str:
    """Return how many are better and worse than the best naive forecast by intervals that exclude zero."""
    # The same settings in two arms are one model.
    judged = {row["fingerprint"]: (row, gain) for row in group.models if (gain := row["improvement"])}
    if not judged:
        return _accuracies(group)
    _, first = next(iter(judged.values()))
    if all(gain["value"] is None for _, gain in judged.values()):
        return describe_unbeatable(group, first)
    words = Counter(against_naive(gain, group.naive_epoch(row)) for row, gain in judged.values())
    rest = [f"{words[verdict]} {text}" for verdict, text in OTHERS.items() if words[verdict]]
    rival, metric = group.kind.name_naive(first["over"]), METRIC.get(first["metric"], first["metric"])
    won = f"{words['better']} of {some(len(judged), 'model')} better than the best naive forecast ({rival})"
    luck = " Luck alone makes one model in 40 better." if words["better"] else ""
    return f"{group.subject}: {', '.join([f'{won} on {metric} with 95% confidence', *rest])}.{luck}"


def describe_unbeatable(group: Group, gain: Improvement) -> str:
    """Return why no improvement can be computed."""
    rival = group.kind.name_naive(gain["over"])
    return f"{group.subject}: the best naive forecast ({rival}) is never wrong on the test, so no model can beat it."


def find_suspects(group: Group) -> str:
    """Return the warning before all else if metrics are too good to be true; '' if none is."""
    newest, naive = group.newest, [row["test"] for row in group.naive]
    signs = [(row["name"], find_signs(newest.config, newest.data, row["test"], naive)) for row in group.models]
    named = [f"{name}: {sign}" for name, sign in signs if sign]
    others = f"; so is {some(len(named) - 1, 'other model')}" if len(named) > 1 else ""
    return warn(named[0] + others) if named else ""


def _accuracies(group: Group) -> str:
    best = group.models[0]
    parts = [f"{best['name']} reaches {percent(best['test'].get('accuracy'))} test accuracy"]
    for row in group.naive:
        parts.append(f"{percent(row['test'].get('accuracy'))} for the {group.kind.name_naive(row['name'])}")
    limit = best["test"].get("best_possible_accuracy")
    known = f"; {percent(limit)} is the best possible" if limit is not None else ""
    return f"{group.subject}: {' against '.join(parts)}{known}."
