"""Methods against each other, over seeds: computed by hand."""

from datetime import UTC, datetime

import pytest
from result_rows import chosen, search_summary

from sp500.report.search import samplers
from sp500.runs.record import Machine, RunRecord, Seconds

AT = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def search(method, seed, loss, *, space="wide", configs=60, epochs=3, arm="ray", status="ok"):
    return RunRecord(
        name=f"{method}-{seed}",
        experiment="tune",
        arm=arm,
        status=status,
        config={"data": {"window": 30}, "train": {"epochs": epochs}},
        fingerprint="f",
        seed=seed,
        started=AT,
        finished=AT,
        seconds=Seconds(setup=1, train=1, total=2),
        machine=Machine(cpus=2, memory_bytes=8 << 30, threads=1, system="test"),
        versions={},
        search=search_summary(space=space, configs=configs, method=method, best=chosen(valid_loss=loss)),
    )


CONTEST = [search("tpe", seed, loss) for seed, loss in enumerate((0.40, 0.42, 0.44))]
CONTEST += [search("random", seed, loss) for seed, loss in enumerate((0.41, 0.41, 0.47))]


def test_means_and_spreads_are_told_with_the_seeds_won():
    [said] = samplers.verdicts(CONTEST)
    assert said == (
        "wide, 60 configs: tpe found a lower loss than random search "
        "(0.420000 ± 0.020000 against 0.430000 ± 0.034641; lower in 2 of 3 seeds that both searched)."
    )
    [table] = samplers.methods(CONTEST)
    assert "wide, 60 configs" in table.caption


def test_metric_of_which_the_highest_is_best_is_named_with_its_own_sign():
    contest = [search("tpe", 0, -0.9), search("random", 0, -0.8)]
    for record in contest:
        record.search.update(metric="accuracy", maximize=True)
    [sentence] = samplers.verdicts(contest)
    assert "tpe found a higher accuracy than random search (0.900000 against 0.800000; higher in 1 of 1" in sentence
    [table] = samplers.methods(contest)
    assert table.caption == "Best accuracy by method: wide, 60 configs"
    assert [row.cells[0] for row in table.rows] == ["tpe", "random"]


def test_method_that_does_not_win_is_told_as_such():
    worse = [search("tpe", 0, 0.5), search("random", 0, 0.4)]
    [said] = samplers.verdicts(worse)
    assert "tpe found no lower loss than random search (0.500000 against 0.400000; lower in 0 of 1 seed" in said


@pytest.mark.parametrize(
    "other",
    [
        search("random", 0, 0.4, space="grid18"),
        search("random", 0, 0.4, configs=59),
        search("random", 0, 0.4, epochs=4),
        search("random", 0, 0.4, arm="all"),
        search("random", 0, 0.4, status="failed"),
        search("tpe", 1, 0.4),
    ],
)
def test_searches_that_are_not_alike_are_not_compared(other):
    records = [search("tpe", 0, 0.4), other]
    assert samplers.verdicts(records) == []
    assert samplers.methods(records) == []


def test_seed_that_was_searched_again_counts_once():
    records = [search("random", 0, 0.9), *CONTEST]
    assert samplers.contests(records) == samplers.contests(CONTEST)
