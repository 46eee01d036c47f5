"""The law against times made by its formula as Gunther writes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sp500.runs import usl


def seconds(workers: int, work: float, sigma: float, kappa: float) -> float:
    """Work over the relative capacity N / (1 + sigma (N - 1) + kappa N (N - 1))."""
    capacity = workers / (1 + sigma * (workers - 1) + kappa * workers * (workers - 1))
    return work / capacity


@given(work=st.floats(1, 1e4), sigma=st.floats(0, 0.9), kappa=st.floats(0, 0.5), start=st.floats(0.1, 100))
def test_known_parameters_come_back_from_three_numbers_of_workers(work, sigma, kappa, start):
    counts = (1, 2, 4)
    fitted = usl.fit(counts, [start] * 3, [seconds(n, work, sigma, kappa) for n in counts]).law
    found = (fitted.start, fitted.work, fitted.sigma, fitted.kappa)
    assert found == pytest.approx((start, work, sigma, kappa), rel=1e-6, abs=1e-6)
    assert fitted.seconds(16) == pytest.approx(start + seconds(16, work, sigma, kappa), rel=1e-5)


def test_two_numbers_of_workers_tell_contention_and_say_that_coherency_is_assumed():
    fitted = usl.fit([1, 2], [5.0, 5.0], [seconds(n, 100.0, 0.1, 0.0) for n in (1, 2)])
    assert (fitted.law.work, fitted.law.sigma, fitted.law.kappa) == pytest.approx((100.0, 0.1, 0.0))
    assert list(fitted.fixed) == ["coherency"]
    assert fitted.fixed["coherency"].startswith("coherency")


def test_one_number_of_workers_tells_the_work_under_stated_defaults():
    fitted = usl.fit([2], [5.0], [seconds(2, 100.0, usl.SIGMA, 0.0)])
    assert fitted.law.work == pytest.approx(100.0)
    assert list(fitted.fixed) == ["joining", "contention", "coherency"]


def test_more_workers_that_took_longer_are_coherency_since_waiting_explains_no_more_than_all():
    # All 10 seconds wait in line; each further worker adds 7.
    fitted = usl.fit([1, 2], [1.0, 1.0], [10.0, 17.0])
    assert (fitted.law.sigma, fitted.law.sync) == pytest.approx((1.0, 7.0))
    assert fitted.law.seconds(4) == pytest.approx(1 + 10 + 3 * 7)
    assert list(fitted.fixed) == ["contention"]


def test_workers_above_the_cores_that_they_share_divide_the_work_no_further():
    fitted = usl.fit([1, 2], [5.0, 5.0], [100.0, 60.0], cores=2).law
    assert [fitted.seconds(n) for n in (1, 2, 4, 64)] == pytest.approx([105, 65, 65, 65])
    # Measured above the cores: parallel 80 over two cores, serial 20, and 3 for each further worker.
    shared = {count: 80 / min(count, 2) + 20 + 3 * (count - 1) for count in (1, 2, 4, 8)}
    known = usl.fit([1, 2, 4], [5.0] * 3, [shared[count] for count in (1, 2, 4)], cores=2).law
    assert known.seconds(8) == pytest.approx(5 + shared[8])
    above = usl.fit([4, 8], [5.0, 5.0], [shared[4], shared[8]], cores=2)
    assert above.law.seconds(16) == pytest.approx(5 + shared[8] + 8 * 3)
    assert list(above.fixed) == ["contention"]


def test_start_that_each_further_worker_makes_longer_goes_on_to_grow():
    fitted = usl.fit([1, 2, 4], [20.0, 25.0, 35.0], [10.0] * 3).law
    assert fitted.start_seconds(8) == pytest.approx(20 + 7 * 5)
    assert fitted.seconds(8) == pytest.approx(20 + 7 * 5 + 10)


def test_start_that_varies_by_no_more_than_runs_do_does_not_grow():
    fitted = usl.fit([1, 2, 4], [20.0, 20.5, 22.0], [10.0] * 3).law
    assert (fitted.start, fitted.joining) == (20.5, 0.0)


@example({1: (13.0, 1.0), 2: (1.0, 1.0), 3: (3.0, 1.0)}, 1)  # Least squares start one worker in no time,
@example({2: (1.0, 1.0), 32: (1.0, 31.0)}, 1)  # or let it train in none.
@given(
    took=st.dictionaries(
        st.integers(1, 32), st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e4)), min_size=1, max_size=5
    ),
    workers=st.integers(1, 256),
)
def test_range_holds_the_point_and_nothing_is_negative(took, workers):
    start, train = zip(*took.values(), strict=True)
    fitted = usl.fit(list(took), start, train)
    low, high = fitted.interval(workers)
    assert 0 < low <= fitted.law.seconds(workers) <= high
    assert min(fitted.law.parallel, fitted.law.serial, fitted.law.sync) >= 0


def test_same_runs_give_the_same_range():
    first, second = (usl.fit([1, 2, 4], [3, 3, 4], [40, 22, 13]).interval(8) for _ in range(2))
    assert first == second


def test_range_holds_most_further_runs_whose_noise_the_runs_show():
    counts, held = (1, 1, 2, 2, 4, 4), 0
    for seed in range(20):
        noise = 1 + 0.08 * np.random.default_rng(seed).standard_normal(2 * len(counts) + 1)
        took = [seconds(n, 100.0, 0.05, 0.001) * noise[place] for place, n in enumerate(counts)]
        low, high = usl.fit(counts, list(20 * noise[6:12]), took).interval(8)
        held += low <= (20 + seconds(8, 100.0, 0.05, 0.001)) * noise[-1] <= high
    assert held >= 15


def test_repeats_of_runs_say_how_much_they_vary():
    found = usl.variation([[90.0, 110.0], [50.0], [19.0, 20.0, 21.0]])
    # Deviations of 10%, 10%, 5%, 0 and 5% with one and two degrees of freedom.
    assert (found.share, found.freedom) == (pytest.approx(np.sqrt((2 * 0.1**2 + 2 * 0.05**2) / 3)), 3)
    assert usl.variation([[1.0], [2.0]]) == usl.Variation(0.10, 0)


def test_range_is_wider_where_repeated_runs_vary_more():
    def width(varies: float) -> float:
        took = [100 * (1 + varies), 100 * (1 - varies), 50 * (1 + varies), 50 * (1 - varies)]
        low, high = usl.fit((1, 1, 2, 2), [20.0] * 4, took).interval(4)
        return high - low

    assert width(0.2) > 2 * width(0.05)


def test_so_many_times_the_samples_take_as_many_times_the_training_and_one_start():
    fitted = usl.fit([1, 2, 4], [5.0] * 3, [seconds(n, 100.0, 0.1, 0.01) for n in (1, 2, 4)])
    assert fitted.scale(3.0).law.seconds(2) == pytest.approx(5 + 3 * seconds(2, 100.0, 0.1, 0.01))


def test_speedup_where_nothing_was_measured_is_amdahls_with_a_twentieth_in_line():
    assert [usl.default(n) for n in (1, 2, 16)] == pytest.approx([1, 2 / 1.05, 16 / 1.75])
