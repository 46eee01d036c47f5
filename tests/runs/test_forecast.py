"""Forecasts from records made by a known law, the runs they are made of, and what they say where there are too few."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from rate_list import CLUSTER, RATES, TABLE, WORKER
from result_rows import NOW, machine, run_record, search_summary, shard_facts

from sp500.report import costs
from sp500.report.search import results
from sp500.runs import compare, forecast, scaling
from sp500.runs.cost import RateTable
from sp500.runs.forecast import Question
from sp500.runs.record import RunRecord, Seconds

START, WORK, SIGMA, KAPPA = 30.0, 100.0, 0.1, 0.01


def train_seconds(workers: int) -> float:
    return WORK * (1 + SIGMA * (workers - 1) + KAPPA * workers * (workers - 1)) / workers


def record(workers: int, minute: int = 0, train: float | None = None, **changes: Any) -> RunRecord:
    took = train_seconds(workers or 1) if train is None else train
    cluster = changes.pop("cluster", CLUSTER | WORKER)
    nodes = changes.pop("simulated_nodes", 0)
    facts: dict[str, Any] = {
        "experiment": "scale", "arm": "ray", "config": {}, "fingerprint": "f", "samples": 1000,
        "finished": NOW + timedelta(minutes=minute), "num_workers": workers,
        "seconds": Seconds(setup=START, train=took, total=START + took),
        "machine": machine(cluster, simulated_nodes=nodes),
    }  # fmt: skip
    return run_record(**({"name": f"scale-{workers}-{minute}"} | facts | changes))


def asked(*records: RunRecord, rates: RateTable | None = RATES, **changes: Any) -> dict[str, Any]:
    return forecast.forecast(records, Question(**changes), rates)


def test_row_per_number_of_workers_follows_the_law_of_the_runs():
    found = asked(record(1), record(2), record(4))
    rows = {row["workers"]: row for row in found["rows"]}
    assert list(rows) == [1, 2, 4, 8, 16]
    assert rows[8]["seconds"] == pytest.approx(START + train_seconds(8))
    assert rows[8]["speedup"] == pytest.approx((START + WORK) / (START + train_seconds(8)))
    assert rows[8]["efficiency"] == pytest.approx(rows[8]["speedup"] / 8)
    assert rows[8]["seconds_low"] <= rows[8]["seconds"] <= rows[8]["seconds_high"]
    assert (rows[4]["measured"], rows[8]["measured"]) == (pytest.approx(START + train_seconds(4)), None)
    assert found["basis"]["used"] == ["scale-1-0", "scale-2-0", "scale-4-0"]
    # A worker's node: 4 * 0.05 + 16 * 0.01 = 0.36 an hour; the head: 0.07.
    assert rows[8]["cost"] == pytest.approx((8 * 0.36 + 0.07) * rows[8]["seconds"] / 3600)
    assert rows[8]["cost_low"] <= rows[8]["cost"] <= rows[8]["cost_high"]


def test_nodes_of_a_type_and_spot_are_priced_as_asked_and_without_a_table_not_at_all():
    (row,) = asked(record(1), workers=(2,), node_type="h100")["rows"]
    (spot,) = asked(record(1), workers=(2,), spot=True)["rows"]
    assert row["cost"] == pytest.approx((2 * 10 + 0.07) * row["seconds"] / 3600)  # 10 * .05 + 9 + 50 * .01 = 10
    assert spot["cost"] == pytest.approx((2 * 0.144 + 0.07) * spot["seconds"] / 3600)
    found = asked(record(1), rates=None)
    assert (found["rows"][0]["cost"], found["currency"]) == (None, None)


def test_runs_on_one_machine_are_priced_as_it_and_say_what_they_cannot_show():
    own = TABLE | {"types": TABLE["types"] | {"laptop": TABLE["types"]["laptop"] | {"cpu_hour": 0.5}}}
    runs = [record(n, cluster={"CPU": 2.0, "nodes": n + 1.0}, simulated_nodes=n) for n in (1, 2)]
    found = asked(*runs, rates=RateTable.model_validate(own))
    row = found["rows"][3]
    assert row["cost"] == pytest.approx(row["seconds"] / 3600)
    assert "2 cores of one machine" in found["assumption"]


def test_no_runs_give_the_default_and_its_assumption_and_no_seconds():
    found = asked()
    assert [row["seconds"] for row in found["rows"]] == [None] * 5
    assert found["rows"][1]["speedup"] == pytest.approx(2 / 1.05)
    assert "5% of the work" in found["assumption"]
    assert found["backtest"] is None
    json.dumps(found, allow_nan=False)


def test_two_numbers_of_workers_say_what_they_did_not_tell():
    found = asked(record(1), record(2))
    assert found["basis"]["assumed"] == ["coherency"]
    assert "More than 2 workers" in found["assumption"]


def test_backtest_leaves_out_the_most_workers_and_tells_by_how_much_it_missed():
    # From 100 and 60 seconds follow a serial 20 and a parallel 80: 40 on four workers. Measured are 50.
    runs = [record(n, train=took) for n, took in ((1, 100.0), (2, 60.0), (4, 50.0))]
    tested = asked(*runs)["backtest"]
    assert (tested["fitted_on"], tested["predicted"]) == ([1, 2], 4)
    assert tested["error_percent"] == pytest.approx(100 * (70 / 80 - 1))
    assert tested["measured"] == pytest.approx(80)


@pytest.mark.parametrize("repeated", [True, False])
def test_range_without_repeated_runs_is_named_after_its_assumption(repeated):
    again = [record(1, 1, train=110.0), record(2, 2, train=60.0)] if repeated else []
    found = asked(record(1), record(2), record(4), *again)
    assert (found["basis"]["repeats"], found["basis"]["varies"] == 0.10) == (2 * repeated, not repeated)
    shown = costs.forecast_table("forecast", found)
    assert any("vary by 10%" in column.title for column in shown.columns) != repeated
    assert ("2 repeats" in shown.note) == repeated


def test_backtest_of_runs_that_follow_the_law_is_right_and_within_its_range():
    runs = [record(n, train=100 * (0.9 / n + 0.1)) for n in (1, 2, 4)]
    tested = asked(*runs)["backtest"]
    assert tested["error_percent"] == pytest.approx(0, abs=1e-6)
    assert tested["within"]
    assert asked(record(2), record(2, minute=1))["backtest"] is None  # of one number of workers


def test_runs_that_tell_nothing_are_left_out_with_the_reason():
    laptop = {"cluster": {"CPU": 2.0, "nodes": 3.0}, "simulated_nodes": 2}
    resumed = Seconds(setup=1, train=1, total=2, earlier=5)
    found = asked(
        record(1),
        record(2),
        record(4, name="failed", status="failed"),
        record(4, name="resumed", seconds=resumed),
        record(0, name="alone", arm="streaming"),
        record(4, name="laptop", **laptop),
        record(4, name="wider", fingerprint="g", config={"model": {"hidden": 7}}),
        record(4, name="parent", arm="all"),
        record(4, name="model", experiment="train"),
    )
    assert found["basis"]["used"] == ["scale-1-0", "scale-2-0"]
    assert {one["run"]: one["why"] for one in found["basis"]["left_out"]} == {
        "failed": "ended as failed",
        "resumed": "was interrupted",
        "alone": "has no workers (one process)",
        "laptop": "another kind of machine",
        "wider": "other settings or data",
    }


def test_group_with_the_most_numbers_of_workers_counts_and_of_equals_the_newest():
    old = [record(n, config={"train": {"seed": 1}}) for n in (1, 2)]
    new = [record(n, minute=5, config={"train": {"seed": 2}}) for n in (1, 2)]
    one = [record(1, minute=9, config={"train": {"seed": 3}})]
    assert asked(*old, *new, *one)["basis"]["used"] == ["scale-1-5", "scale-2-5"]
    assert asked(*old, record(4, config={"train": {"seed": 1}}), *new)["basis"]["workers"] == [1, 2, 4]


@pytest.mark.parametrize("config", [{"gone": 1}, {"task": "source/mine.py:Mine"}], ids=["another version", "no file"])
def test_settings_that_cannot_be_read_go_with_their_own_fingerprint_alone(config):
    odd = [record(n, fingerprint="odd", config=config) for n in (1, 2)]
    assert asked(*odd, record(4, fingerprint="odder", config=config))["basis"]["workers"] == [1, 2]


def test_size_asked_for_scales_the_training_and_not_the_start():
    (row,) = asked(record(1), record(2), record(4), workers=(2,), size=3000)["rows"]
    assert row["seconds"] == pytest.approx(START + 3 * train_seconds(2))


def test_measured_is_what_ran_and_absent_for_a_size_that_did_not():
    runs = [record(1), record(2), record(2, minute=1, train=500.0, samples=3000, fingerprint="long")]

    def measured(size: int) -> list[float | None]:
        return [row["measured"] for row in asked(*runs, workers=(1, 2), size=size)["rows"]]

    assert measured(1000) == [pytest.approx(START + WORK), pytest.approx(START + train_seconds(2))]
    assert measured(3000) == [None, pytest.approx(START + 500)]
    assert measured(100_000) == [None, None]


def warm(workers: int, samples: int, start: float, rate: float, **changes: Any) -> RunRecord:
    """A run of which the wait for the first batch counts as training: 8 of its seconds of start."""
    took = start + samples / rate
    seconds = Seconds(setup=start - 8, train=took - start + 7, total=took)
    facts = {"seconds": seconds, "samples": samples, "warm_samples_per_second": rate, "fingerprint": str(samples)}
    config = {"train": {"epochs": samples // 1000}, "data": {"multiplier": 10}}
    facts |= {"name": f"{workers}-{samples}", "config": config, "samples_per_second": samples / (took - start + 7)}
    return record(workers, **(facts | changes))


def test_wait_for_the_first_batch_does_not_grow_with_the_windows():
    (row,) = asked(warm(1, 1000, 30.0, 100.0), workers=(1,), size=100_000)["rows"]
    assert row["seconds"] == pytest.approx(30 + 1000)


def test_forecast_and_break_even_of_the_same_runs_say_the_same():
    ones = {1000: (30.0, 90.0), 2000: (32.0, 120.0), 4000: (31.0, 100.0)}
    twos = {1000: (40.0, 170.0), 2000: (45.0, 150.0), 4000: (41.0, 180.0)}
    runs = [warm(n, size, *told) for n, sizes in ((1, ones), (2, twos)) for size, told in sizes.items()]
    alone = record(0, arm="streaming", config={"data": {"multiplier": 10}}, warm_samples_per_second=50.0)
    rows = [scaling.row(one, [], 0) | {"multiplier": one.samples / 1000} for one in [alone, *runs]]
    lines = [one["ray"] for one in scaling.break_even(rows)]
    assert len(lines) == 2
    said = [row["seconds"] for row in asked(*runs, workers=(1, 2), size=50_000)["rows"]]
    assert said == pytest.approx([one["fixed_seconds"] + 50_000 / one["samples_per_second"] for one in lines])


@pytest.mark.parametrize("train", [{"epochs": 20}, {"max_steps": 8}, {"early_stop_patience": 1}], ids=str)
def test_run_that_only_trained_on_more_windows_corrects_the_forecast(train):
    short = [warm(n, 1000, 30.0, 100.0 * n) for n in (1, 2)]
    # Many short epochs are slower: each waits for its first batch.
    long = warm(1, 20_000, 30.0, 50.0, minute=9, config={"train": train, "data": {"multiplier": 1}})
    before, after = (asked(*runs, workers=(1, 2), size=20_000) for runs in (short, [*short, long]))
    assert [row["seconds"] for row in before["rows"]] == pytest.approx([30 + 200, 30 + 100])
    # Two workers were not measured there, and are as much faster than one as where both were.
    assert [row["seconds"] for row in after["rows"]] == pytest.approx([30 + 400, 30 + 200])
    assert [row["measured"] for row in after["rows"]] == [pytest.approx(430), None]
    assert after["basis"]["left_out"] == []


def test_run_of_another_size_tells_of_workers_that_no_other_run_has():
    runs = [warm(1, 4000, 30.0, 100.0), warm(2, 4000, 30.0, 200.0), warm(4, 1000, 30.0, 400.0)]
    found = asked(*runs, workers=(4,), size=4000)
    assert found["rows"][0]["seconds"] == pytest.approx(30 + 10)
    assert found["backtest"]["measured"] == pytest.approx(30 + 1000 / 400)  # of as many windows as were measured
    assert found["backtest"]["seconds"] == pytest.approx(30 + 1000 / 400)


def test_runs_without_a_warm_rate_do_not_stand_beside_those_with_one():
    found = asked(warm(1, 1000, 30.0, 100.0), warm(2, 1000, 30.0, 150.0), record(4, name="older"))
    assert found["basis"]["workers"] == [1, 2]
    assert found["basis"]["left_out"] == [{"run": "older", "why": "a rate measured otherwise"}]


def test_seconds_that_wrote_shards_are_not_forecast():
    written = record(1, data={"shards": shard_facts(writing_seconds=12.0)})
    (row,) = asked(written, workers=(1,))["rows"]
    assert row["seconds"] == pytest.approx(START - 12 + train_seconds(1))


def test_search_has_the_same_start_and_work_in_the_report_and_in_the_forecast():
    summary = search_summary(cores=2, trial_seconds=12.0)
    facts = {"search": summary, "seconds": Seconds(setup=8, train=2, search=9, total=20), "experiment": "tune"}
    arm = record(0, name="all-ray", cluster={}, **facts)
    timed = {"ray": {"seconds": 23.0, "cpu_seconds": 8.0, "others_share": 0.0}}  # by the clock of the parent
    told = compare.searches({"ray": arm}, timed)
    every = record(0, 1, name="all", cluster={}, **facts | {"search": {**summary, **told, "runs": {"ray": "all-ray"}}})
    every = every.model_copy(update={"arm": "all"})
    for records, seconds in (([arm], 20.0), ([arm, every], 23.0)):
        row = results.newest(records, {}).compared["arms"]["ray"]
        found = asked(*records, experiment="tune", workers=(1, 2, 64))
        basis = found["basis"]
        assert (row["seconds"], row["start_seconds"], row["work_seconds"]) == (seconds, seconds - 6, 12.0)
        assert (basis["start_seconds"], basis["work_seconds"]) == pytest.approx((seconds - 6, 12.0))
        one, two, many = (row["seconds"] for row in found["rows"])
        # On one machine more workers than its two cores divide the work no further.
        assert (one, two, many) == pytest.approx((seconds + 6, seconds, seconds))
        assert found["rows"][1]["measured"] == seconds


def test_workers_of_a_search_are_the_cores_of_its_parallel_side():
    def search(cores: int, arm: str = "ray") -> RunRecord:
        took = 90.0 / cores + 10
        seconds = Seconds(setup=8, train=2, search=took, total=10 + took)
        facts = {"search": search_summary(cores=cores, trial_seconds=90.0), "seconds": seconds}
        return record(0, name=f"{arm}-{cores}", experiment="tune", arm=arm, **facts)

    found = asked(search(2), search(4), search(1, "sequential"), experiment="tune", workers=(8,))
    assert found["basis"]["used"] == ["ray-2", "ray-4"]
    assert found["rows"][0]["seconds"] == pytest.approx(10 + 90 / 8 + 10)
    assert found["basis"]["left_out"][0]["run"] == "sequential-1"


def test_job_is_estimated_by_runs_with_as_many_workers_and_else_by_all_with_more_room():
    jobs = [record(n, arm="all", train=70.0 * n) for n in (1, 2, 2)]  # 100, 170, 170 seconds
    assert forecast.estimate(jobs, "scale", 2) == pytest.approx((170 / 1.25, 170 * 1.25))
    assert forecast.estimate(jobs, "scale", 8) == pytest.approx((100 / 2, 170 * 2))


def test_job_that_no_run_is_like_is_not_estimated():
    arms = [record(1), record(2, arm="all", status="failed"), record(2, experiment="train")]
    assert forecast.estimate(arms, "scale", 2) is None
    assert forecast.estimate([], "train", 2) is None
