"""Break-even, strong and weak scaling, against numbers worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_rows import run_record, shard_facts

from sp500.runs import scaling
from sp500.runs.record import EpochMetrics, Machine, RunRecord, Seconds
from sp500.runs.results import ScaleRow

EPOCH: dict[str, Any] = {"train_loss": 1.0, "valid_loss": 1.0, "samples": 1000, "seconds": 6, "train_seconds": 5}
EPOCHS = [EpochMetrics(epoch=number, first_batch_seconds=wait, **EPOCH) for number, wait in ((1, 3.0), (2, 0.0))]


def record(**changes: Any) -> RunRecord:
    facts: dict[str, Any] = {
        "experiment": "scale", "arm": "streaming", "config": {"data": {"multiplier": 10}},
        "samples": 3000, "seconds": Seconds(setup=4, train=15, total=20), "samples_per_second": 200.0,
        "warm_samples_per_second": 250.0, "peak_memory_bytes": 10**8, "metrics": {"test": {"mse": 2e-4}},
        "data": {"windows": {"train": 1000, "test": 50}, "shards": shard_facts()},
    }  # fmt: skip
    return run_record(**(facts | changes))


def one(arm: str, rate: float | None, *, fixed: float = 0.0, workers: int = 0, **changes: Any) -> ScaleRow:
    """A row of an arm that takes `fixed` seconds and then trains 1,000 windows per multiplier at `rate`."""
    multiplier = changes.get("multiplier", 1)
    samples = 1000 * multiplier
    row: dict[str, Any] = {"multiplier": multiplier, "arm": arm, "num_workers": workers, "status": "ok"}
    row |= {"place": "machine"}
    row |= {"samples": samples, "warm_samples_per_second": rate, "writing_seconds": 0.0}
    return row | {"seconds": fixed + (samples / rate if rate else 0.0)} | changes


def test_row_takes_the_epoch_at_the_warm_rate_and_writing_from_the_shards():
    row = scaling.row(record(), EPOCHS, 2 << 30)
    assert row["epoch_seconds"] == 4.0  # 1,000 windows at 250 a second, also after three epochs
    assert (row["windows"], row["samples"], row["writing_seconds"], row["bytes_on_disk"]) == (1000, 3000, 1.5, 4096)
    assert (row["seconds"], row["setup_seconds"], row["train_seconds"]) == (20, 4, 15)
    assert row["epoch_rates"] == [500.0, 200.0]  # windows over seconds without the wait for the first batch
    assert (row["place"], row["hardware"]) == ("machine", "2 cores, 8 GiB")
    assert (row["multiplier"], row["memory_limit_bytes"], row["test_error"]) == (10, 2 << 30, 2e-4)


def test_limit_of_memory_is_watched_on_macos_and_enforced_elsewhere():
    there = Machine(cpus=8, memory_bytes=8 << 30, threads=1, system="macOS-14.5-arm64-arm-64bit")
    assert scaling.row(record(machine=there), EPOCHS, 2 << 30).get("memory_watched") is True
    assert "memory_watched" not in scaling.row(record(), EPOCHS, 2 << 30)


def test_row_of_an_arm_that_failed_at_once_has_nothing_to_tell_but_why():
    bad = record(status="out_of_memory", reason="5 bytes", data={}, metrics={}, samples=0, warm_samples_per_second=None)
    row = scaling.row(bad, [], 1)
    assert (row["status"], row["reason"]) == ("out_of_memory", "5 bytes")
    assert [row[key] for key in ("windows", "epoch_seconds", "bytes_on_disk", "test_error")] == [None] * 4
    assert row["writing_seconds"] == 0.0


def line(arm: str, fixed: float, rate: float) -> dict[str, Any]:
    facts = {"arm": arm, "place": "machine", "largest_miss": pytest.approx(0.0)}
    return facts | {"fixed_seconds": pytest.approx(fixed), "samples_per_second": rate}


def test_two_arms_cross_where_the_saved_seconds_have_paid_the_fixed_ones():
    # 2 + n/100 = 12 + n/200  =>  n (1/100 - 1/200) = 10  =>  n = 2,000; 2 + n/100 = 12 + n/400  =>  n = 1,333
    sooner, later = (one("ray", rate, fixed=12.0, workers=workers) for rate, workers in ((200.0, 2), (400.0, 4)))
    found, other = scaling.break_even([later, one("streaming", 100.0, fixed=2.0), sooner])
    assert (found["workers"], found["windows"]) == (2, pytest.approx(2000))
    assert (other["workers"], other["windows"]) == (4, pytest.approx(4000 / 3))
    assert (found["alone"], found["ray"]) == (line("streaming", 2.0, 100.0), line("ray", 12.0, 200.0))


@given(fixed=st.floats(0, 50), more=st.floats(0.1, 100), rate=st.floats(10, 1000), times=st.floats(1.1, 20))
def test_at_the_break_even_both_take_as_long(fixed, more, rate, times):
    rows = [one("streaming", rate, fixed=fixed), one("ray", rate * times, fixed=fixed + more, workers=2)]
    (found,) = scaling.break_even(rows)
    sides = [found["alone"], found["ray"]]
    alone, ray = (side["fixed_seconds"] + found["windows"] / side["samples_per_second"] for side in sides)
    assert alone == pytest.approx(ray)


@pytest.mark.parametrize(
    ("rate", "fixed", "alone", "windows"),
    [(100, 12, 2, None), (100, 2, 2, None), (99, 12, 2, None), (50, 1, 2, None), (200, 2, 12, 0.0)],
)
def test_ray_that_is_no_faster_never_pays_and_ray_that_starts_no_later_always(rate, fixed, alone, windows):
    rows = [one("streaming", 100.0, fixed=alone), one("ray", rate, fixed=fixed, workers=2)]
    assert [found["windows"] for found in scaling.break_even(rows)] == [windows]


def test_seconds_that_wrote_shards_are_not_fixed_seconds():
    wrote = one("streaming", 100.0, fixed=9.0, writing_seconds=7.0)
    (found,) = scaling.break_even([wrote, one("ray", 200.0, fixed=12.0, workers=2)])
    assert found["alone"]["fixed_seconds"] == pytest.approx(2.0)


def test_rate_is_that_of_the_largest_set_and_fixed_seconds_the_median():
    sizes = [(1, 50.0, 2.0), (10, 100.0, 3.0), (4, 80.0, 40.0)]
    alone = [one("streaming", rate, fixed=fixed, multiplier=size) for size, rate, fixed in sizes]
    (found,) = scaling.break_even([*alone, one("ray", 200.0, fixed=12.0, workers=2)])
    # 4,000 windows took 40 + 4,000 / 80 seconds; the law says 3 + 4,000 / 100.
    assert found["alone"] == line("streaming", 3.0, 100.0) | {"largest_miss": pytest.approx(1 - 43 / 90)}


def test_one_process_streams_where_it_can_and_keeps_arrays_otherwise():
    arrays, ray = one("in_memory", 300.0), one("ray", 200.0, fixed=12.0, workers=2)
    (both,) = scaling.break_even([arrays, one("streaming", 100.0, fixed=2.0), ray])
    (only,) = scaling.break_even([arrays, ray])
    assert (both["alone"]["arm"], only["alone"]["arm"]) == ("streaming", "in_memory")


@pytest.mark.parametrize("change", [{"status": "out_of_memory"}, {"status": "failed"}, {"warm": None}])
def test_rows_that_did_not_end_well_or_have_no_warm_rate_do_not_count(change):
    rate = None if "warm" in change else 100.0
    broken = {"status": change.get("status", "ok"), "multiplier": 50}
    good = [one("streaming", 100.0, fixed=2.0), one("ray", 200.0, fixed=12.0, workers=2)]
    bad = [one("streaming", rate, fixed=500.0, **broken), one("ray", rate, fixed=500.0, workers=2, **broken)]
    (found,) = scaling.break_even([*good, *bad])
    assert found["windows"] == pytest.approx(2000)
    assert scaling.break_even(bad) == []
    assert scaling.break_even([good[0], bad[1]]) == []
    assert scaling.strong([good[1], one("ray", rate, workers=4, **(broken | {"multiplier": 1}))]) == []


def test_strong_scaling_compares_one_set_on_more_workers():
    rates = {1: 100.0, 2: 150.0, 4: 400.0}
    rows = [one("ray", rate, workers=workers, multiplier=10) for workers, rate in reversed(rates.items())]
    found = scaling.strong([*rows, one("ray", 999.0, workers=2, multiplier=20), one("streaming", 999.0, multiplier=10)])
    assert [(row["multiplier"], row["workers"]) for row in found] == [(10, 1), (10, 2), (10, 4)]
    assert [row["speedup"] for row in found] == [1.0, 1.5, 4.0]
    assert [row["efficiency"] for row in found] == [1.0, 0.75, 1.0]


def test_efficiency_is_over_the_fewest_workers_that_ran():
    rows = [one("ray", rate, workers=workers) for workers, rate in ((2, 100.0), (6, 240.0))]
    assert [row["efficiency"] for row in scaling.strong(rows)] == [1.0, pytest.approx(0.8)]


def test_weak_scaling_compares_sets_that_grow_with_the_workers_smallest_share_first():
    grid = {(2, 1): 70.0, (4, 2): 120.0, (1, 1): 100.0, (2, 2): 180.0, (1, 2): 90.0}
    found = scaling.weak([one("ray", rate, workers=w, multiplier=size) for (size, w), rate in grid.items()])
    told = [(row["multiplier_per_worker"], row["workers"], row["speedup"], row["efficiency"]) for row in found]
    assert told == [
        (1.0, 1, 1.0, 1.0),
        (1.0, 2, 1.8, 0.9),
        (2.0, 1, 1.0, 1.0),
        (2.0, 2, pytest.approx(120 / 70), pytest.approx(60 / 70)),
    ]


def test_one_number_of_workers_shows_no_scaling():
    rows = [one("ray", 100.0, workers=2, multiplier=size) for size in (1, 10)]
    assert scaling.strong(rows) == scaling.weak(rows) == []
