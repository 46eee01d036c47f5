"""Decisions of the stoppers: those of Optuna where the rules are the same, of any arm, and after a kill."""

import math
import random
import statistics
import warnings

import optuna
import pytest

from sp500.runs.trials import RungDecision
from sp500.tuning.stopper import STOPPERS, Asha, StopRule

BUDGET, TABLES = 27, 500


def reports(chance: random.Random, trials: int, reduction: int) -> list[tuple[int, int, float]]:
    """Reports (trial, rung, value) of a random table in random order; of one trial in the order of the rungs.

    A few values tie, and a few are not finite.
    """
    table = [[chance.choice([chance.random(), chance.randint(0, 3) / 4]) for _ in range(4)] for _ in range(trials)]
    for row in table:
        if chance.random() < 0.1:
            row[chance.randrange(4)] = chance.choice([math.nan, math.inf])
    order = [trial for trial in range(trials) for _ in range(4)]
    chance.shuffle(order)
    reached = dict.fromkeys(range(trials), 0)
    listing = []
    for trial in order:
        listing.append((trial, reduction ** reached[trial], table[trial][reached[trial]]))
        reached[trial] += 1
    return listing


def optuna_decisions(listing, reduction: int) -> dict[tuple[int, int], bool]:
    """The answers of SuccessiveHalvingPruner, asked by trials that end when it says so."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=reduction)
    study = optuna.create_study(pruner=pruner)
    trials, answers, stopped = {}, {}, set()
    for trial, rung, value in listing:
        if trial in stopped:
            continue
        if trial not in trials:
            trials[trial] = study.ask()
        trials[trial].report(value, rung)
        answers[trial, rung] = not trials[trial].should_prune()
        if not answers[trial, rung]:
            stopped.add(trial)
    return answers


def test_asha_decides_as_optuna_does_below_the_budget():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    compared = pruned_at_the_end = 0
    for seed in range(TABLES):
        chance = random.Random(seed)
        reduction = chance.choice([2, 3, 4])
        budget = reduction**3
        listing = reports(chance, chance.randint(1, 30), reduction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = optuna_decisions(listing, reduction)
        stopper = Asha(1, reduction)
        rungs = stopper.rungs(0, budget - 1)
        for trial, rung, value in listing:
            if (trial, rung) in expected and rung in rungs:
                assert stopper.decide(str(trial), rung, value) == expected[trial, rung], (seed, trial, rung)
                compared += 1
        # The difference: Optuna also asks at the last epoch, and marks a trial that trained to its end as pruned.
        pruned_at_the_end += sum(not goes_on for (_, rung), goes_on in expected.items() if rung == budget)
    assert compared > 10_000
    assert pruned_at_the_end > 100


def test_rungs_end_before_the_budget():
    assert Asha(1, 3).rungs(0, BUDGET - 1) == [1, 3, 9]
    assert Asha(2, 4).rungs(2, 40) == [8, 32]
    assert Asha(30, 3).rungs(0, BUDGET - 1) == []


@pytest.mark.parametrize("name", STOPPERS)
def test_stopper_rebuilt_from_its_decisions_goes_on_alike(name):
    listing = reports(random.Random(5), 40, 3)
    whole = StopRule(name, 1).make()
    answers = [whole.decide(str(trial), rung, value) for trial, rung, value in listing]
    rows = [
        RungDecision(trial=str(trial), rung=rung, value=value, goes_on=answer)
        for (trial, rung, value), answer in zip(listing, answers, strict=True)
    ]
    for cut in (0, 1, 50, 100):
        again, kept = StopRule(name, 1).make(rows[:cut]), []
        # What was decided before the kill is asked again, and does not count twice.
        assert [again.decide(row.trial, row.rung, row.value, kept.append) for row in rows] == answers
        assert kept == rows[cut:]


def test_median_lets_five_pass_and_then_compares_with_the_others():
    stopper, chance = StopRule("median").make(), random.Random(1)
    values = [chance.random() for _ in range(200)]
    expected = [place < 5 or value <= statistics.median(values[:place]) for place, value in enumerate(values)]
    assert [stopper.decide(str(place), 3, value) for place, value in enumerate(values)] == expected
    assert sum(expected) < 120
