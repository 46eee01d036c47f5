"""Is the model any good? The best model of each kind of forecast against the strongest naive forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp500 import formatting
from sp500.formatting import METRIC, against_naive, bounds, percent, some
from sp500.report.models.results import Group, ModelRow
from sp500.report.models.verdicts import describe_unbeatable, find_suspects
from sp500.report.plot_style import SMALL, Dot, draw_dots
from sp500.report.screen.answer import GOOD, Answer

GROUPS = 4
"""Kinds of forecasts in the chart."""
BETTER, UNCLEAR = "better", "unclear"


@dataclass(frozen=True)
class Contest:
    """The best model of a group, and how many of its models are reliably better than the naive forecast."""

    group: Group
    best: ModelRow
    word: str
    better: int
    models: int


def collect(groups: Sequence[Group]) -> list[Contest]:
    """Return the groups whose models were compared with naive forecasts, those with a better model first."""
    contests = []
    for group in groups:
        # The same settings in two arms are one model.
        models = {row["fingerprint"]: row for row in reversed(group.models) if row["improvement"]}
        words = [against_naive(row["improvement"], group.naive_epoch(row)) for row in models.values()]
        if models and any(row["improvement"]["value"] is not None for row in models.values() if row["improvement"]):
            best = next(row for row in group.models if row["improvement"])
            word = against_naive(best["improvement"], group.naive_epoch(best))
            contests.append(Contest(group, best, word, words.count(BETTER), len(models)))
    return sorted(contests, key=lambda contest: (not contest.better, -contest.models))


def answer(groups: Sequence[Group]) -> Answer | None:
    """Return how far the best model is above the strongest naive forecast, or how many of how many models are."""
    contests = collect(groups)
    if not contests:
        return _unbeatable(groups) or _accuracy(groups)
    first, *others = contests
    better = f"{first.better} of {first.models} better"
    number = f"{_gain(first, sign=False)} lower error" if first.better else better
    shown = " ".join([_describe(first), *(_mention(other) for other in others[: GROUPS - 1])])
    warning = next((text for group in groups if (text := find_suspects(group))), "")
    dots = [
        Dot(contest.group.short, gain["value"], bounds(gain), contest.word)
        for contest in contests[:GROUPS]
        if (gain := contest.best["improvement"]) and gain["value"] is not None
    ]
    chart = draw_dots("good", dots, f"{shown} Dots with 95% intervals.", width=SMALL, words=False)
    return Answer(GOOD, number, warning + shown, "models", chart)


def _describe(contest: Contest) -> str:
    """Return the verdict on the first group, with the interval of its best model."""
    gain = contest.best["improvement"]
    assert gain
    rival = contest.group.kind.name_naive(gain["over"])
    ends = bounds(gain)
    interval = f"95% interval {percent(ends[0], sign=True)} to {percent(ends[1], sign=True)}" if ends else "no interval"
    metric, name = METRIC.get(gain["metric"], gain["metric"].upper()), contest.best["name"]
    if contest.better:
        head = f"Yes. {contest.group.subject}: {name} has a lower {metric} than the strongest naive forecast ({rival})"
        return f"{head}, {interval}; {contest.better} of {contest.models} models do."
    models = some(contest.models, "model")
    says = "Not shown" if contest.word == UNCLEAR else "No"
    head = f"{says}. {contest.group.subject}: {contest.better} of {models} beat the strongest naive forecast ({rival})."
    verdict = f"{interval}: {contest.word}" if ends else "without an interval"
    return f"{head} Best: {name}, {_gain(contest)}, {verdict}."


def _mention(contest: Contest) -> str:
    subject, models = contest.group.subject, some(contest.models, "model")
    return f"{subject}: {contest.better} of {models} better." if contest.better else f"{subject}: no model is better."


def _gain(contest: Contest, *, sign: bool = True) -> str:
    gain = contest.best["improvement"]
    return percent(gain["value"] if gain else None, sign=sign)


def _unbeatable(groups: Sequence[Group]) -> Answer | None:
    """Return that a naive forecast is never wrong, where that is why no improvement can be computed."""
    for group in groups:
        if gains := [gain for row in group.models if (gain := row["improvement"])]:
            return Answer(GOOD, "not known", describe_unbeatable(group, gains[0]), "models")
    return None


def _accuracy(groups: Sequence[Group]) -> Answer | None:
    """Return the accuracy of the best model, where no improvement was computed."""
    group = next((group for group in groups if group.models and "accuracy" in group.models[0]["test"]), None)
    if group is None:
        return None
    rivals = [
        f"{percent(row['test']['accuracy'])} for the {group.kind.name_naive(row['name'])}"
        for row in group.naive
        if row["test"].get("accuracy") is not None
    ]
    against = f", against {formatting.join(rivals)}" if rivals else ""
    caption = f"{find_suspects(group)}{group.subject}: test accuracy of {group.models[0]['name']}{against}."
    return Answer(GOOD, percent(group.models[0]["test"]["accuracy"]), caption, "models")
