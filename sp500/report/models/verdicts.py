"""Verdicts on models, in sentences.

Every sentence is computed from the findings, and says "slower", "worse" or "cannot be told" if so.
"""

from __future__ import annotations

from sp500.formatting import KEPT, METRIC, NOTHING, against_naive, percent, some
from sp500.report.models.results import Group
from sp500.runs.details import Elsewhere
from sp500.runs.results import Improvement
from sp500.suspicion import find_signs, warn


def models(group: Group) -> list[str]:
    """Return how many models beat the best naive forecast, after a warning if that is too good to be true."""
    first, *rest = _compare(group)
    return [find_suspects(group) + first, *rest]


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


def _compare(group: Group) -> list[str]:
    """Return how many have an interval that excludes zero."""
    # The same settings in two arms are one model.
    judged = {row["fingerprint"]: (row, gain) for row in group.models if (gain := row["improvement"])}
    if not judged:
        return [_accuracies(group)]
    _, first = next(iter(judged.values()))
    rival = f"the best naive forecast ({group.kind.name_naive(first['over'])})"
    contest = f"{rival} on {METRIC.get(first['metric'], first['metric'])}"
    if all(gain["value"] is None for _, gain in judged.values()):
        return [describe_unbeatable(group, first)]
    words = [(row["name"], gain, against_naive(gain, group.naive_epoch(row))) for row, gain in judged.values()]
    judged_words = [entry for entry in words if entry[2] != NOTHING]
    if not judged_words:
        part = f"without intervals, none of {some(len(judged), 'model')} can be said to beat"
        return [f"{group.subject}: {part} {contest}."]
    better = [(name, gain) for name, gain, word in judged_words if word == "better"]
    worse, unchanged = (sum(word == entry for *_, word in judged_words) for entry in ("worse", KEPT))
    rest = _others(worse, unchanged, len(judged_words))
    if better:
        gains = "; ".join(f"{name} {_gain(gain)}" for name, gain in better)
        part = f"{len(better)} of {some(len(judged_words), 'model')} {'beats' if len(better) == 1 else 'beat'}"
        verdict = f"{part} {contest} with 95% confidence."
        rest[:0] = [f"By how much: {gains}.", "Luck alone does so for one model in 40."]
    else:
        part = "the one model does not beat" if len(judged_words) == 1 else f"none of {len(judged_words)} models beats"
        usual = ", as is usual for daily returns" if _is_daily(group) else ""
        verdict = f"{part} {contest} with 95% confidence{usual}."
    once = ["Settings that ran in two arms count once."] if len(judged) < len(group.models) else []
    return [f"{group.subject}: {verdict}", *rest, *once]


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


def _others(worse: int, unchanged: int, of: int) -> list[str]:
    """Return how many models are worse, and how many are the naive forecast themselves."""
    lines = []
    if worse:
        lines.append(f"{'It is' if of == 1 else f'{worse} is' if worse == 1 else f'{worse} are'} reliably worse.")
    if unchanged:
        lines.append(f"{'It' if of == 1 else unchanged} kept the naive forecast: no epoch lowered the validation loss.")
    return lines


def _accuracies(group: Group) -> str:
    best = group.models[0]
    parts = [f"{best['name']} reaches {percent(best['test'].get('accuracy'))} test accuracy"]
    for row in group.naive:
        parts.append(f"{percent(row['test'].get('accuracy'))} for the {group.kind.name_naive(row['name'])}")
    limit = best["test"].get("best_possible_accuracy")
    known = f"; {percent(limit)} is the best possible" if limit is not None else ""
    return f"{group.subject}: {' against '.join(parts)}{known}."


def _gain(improvement: Improvement) -> str:
    low, high = (percent(end, sign=True) for end in (improvement["low"], improvement["high"]))
    return f"{percent(improvement['value'], sign=True)} ({low} to {high})"


def _is_daily(group: Group) -> bool:
    """Return whether the group forecasts the next day of real prices."""
    return group.kind.real and "splits" in group.newest.data and group.horizon == 1
