"""Methods against each other, over seeds: computed by hand."""

import pytest
from result_rows import chosen, run_record, search_summary

from sp500.report.search import samplers


def search(method, seed, loss, *, space="wide", configs=60, epochs=3, arm="ray", status="ok"):
    summary = search_summary(space=space, configs=configs, method=method, best=chosen(valid_loss=loss))
    config = {"data": {"window": 30}, "train": {"epochs": epochs}}
    facts = {"experiment": "tune", "arm": arm, "status": status, "seed": seed, "fingerprint": "f"}
    return run_record(f"{method}-{seed}", config=config, search=summary, **facts)


CONTEST = [search("tpe", seed, loss) for seed, loss in enumerate((0.40, 0.42, 0.44))]
CONTEST += [search("random", seed, loss) for seed, loss in enumerate((0.41, 0.41, 0.47))]


def test_methods_have_a_row_each_with_the_seeds_won():
    [table] = samplers.methods(CONTEST)
    assert "wide, 60 configs" in table.caption
    assert [row.cells for row in table.rows] == [
        ("tpe", "3", "0.420000", "0.020000", "0.400000", "0.440000", "2 of 3 seeds"),
        ("random", "3", "0.430000", "0.034641", "0.410000", "0.470000", "-"),
    ]


def test_metric_of_which_the_highest_is_best_is_named_with_its_own_sign():
    contest = [search("tpe", 0, -0.9), search("random", 0, -0.8)]
    for record in contest:
        record.search.update(metric="accuracy", maximize=True)
    [table] = samplers.methods(contest)
    assert table.caption == "Best accuracy by method: wide, 60 configs"
    assert [(row.cells[0], row.cells[2]) for row in table.rows] == [("tpe", "0.900000"), ("random", "0.800000")]


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
    assert samplers.methods(records) == []


def test_seed_that_was_searched_again_counts_once():
    records = [search("random", 0, 0.9), *CONTEST]
    assert samplers.contests(records) == samplers.contests(CONTEST)
