"""Which jobs start: order, room, budgets, and that nobody starves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp500.jobs.queue.schedule import Busy, Waiting, plan
from sp500.jobs.resources import Resources

NOW = 1_000_000.0


def job(name, cpus=1, **more):
    return Waiting(name, Resources(cpus=cpus), number=more.pop("number", ord(name[0])), **more)


def planned(queue, busy=(), cpus=4, left=None, now=NOW):
    rooms = {"": Resources(cpus, 0, 0), "far": Resources(1, 0, 0)}
    return plan(queue, busy, rooms, left or {}, {"research": 20.0}, now=now)


def starts(*queue, **more):
    return planned(queue, **more).start


def reason(name, *queue, **more):
    return planned(queue, **more).reasons[name]


def test_higher_priority_starts_first_then_who_came_first():
    assert starts(job("a"), job("b", priority=5), job("c", priority=5), cpus=2) == ["b", "c"]


def test_jobs_of_any_size_share_the_room():
    assert starts(job("a", 2), job("b", 1), job("c", 1), job("d", 1)) == ["a", "b", "c"]


def test_narrow_job_waits_where_it_would_put_off_the_wide_one_before_it():
    busy = [Busy(Resources(cpus=3), ends=NOW + 60)]
    assert starts(job("wide", 4), job("x", 1, seconds=61), busy=busy) == []
    assert starts(job("wide", 4), job("y", 1), busy=busy) == []
    assert "waits behind wide" in reason("y", job("wide", 4), job("x", 1), job("y", 1), busy=busy)


def test_narrow_job_that_ends_in_time_goes_before_the_wide_one():
    busy = [Busy(Resources(cpus=3), ends=NOW + 60)]
    assert starts(job("wide", 4), job("x", 1, seconds=60), busy=busy) == ["x"]


def test_narrow_job_goes_first_where_the_wide_one_leaves_room_over():
    # In 60 s three CPUs come free beside the one that is: the wide job takes three, one is spare.
    busy = [Busy(Resources(cpus=3), ends=NOW + 60)]
    assert starts(job("wide", 3), job("x", 1), job("y", 1), busy=busy) == ["x"]


def test_room_left_over_is_used_up_also_where_nobody_knows_when_it_comes():
    # Four CPUs are free; the wide job waits for six, which leaves two of the eight that there will be.
    queue = job("a", 6), *(job(name) for name in "bcde")
    assert starts(*queue, busy=[Busy(Resources(cpus=4))], cpus=8) == ["b", "c"]


def test_job_that_costs_nothing_needs_no_money():
    assert starts(job("a", project="p", cost=0.0), left={"p": 0.0}) == ["a"]


def test_narrow_jobs_never_starve_a_wide_one_behind_a_job_without_an_end():
    busy = [Busy(Resources(cpus=3))]
    assert starts(job("wide", 4), job("x", 1, seconds=1), busy=busy) == []


def test_job_that_can_never_fit_says_so_and_holds_up_nobody():
    queue = job("big", 8), job("small")
    assert starts(*queue) == ["small"]
    assert reason("big", *queue) == "will never fit: needs 8 CPUs (4 in all)"


def test_waiting_job_names_what_it_lacks():
    assert reason("b", job("b", 4), busy=[Busy(Resources(cpus=3))]) == "waits for 4 CPUs (1 free)"


def test_retry_waits_for_its_time():
    assert starts(job("a", not_before=NOW + 5)) == []
    assert starts(job("a", not_before=NOW)) == ["a"]


def test_job_over_its_budget_waits_with_the_sum_and_holds_up_nobody():
    queue = job("a", project="research", cost=3.0), job("b", project="research", cost=1.0), job("c", cost=9.0)
    assert starts(*queue, left={"research": 2.0}) == ["b", "c"]
    assert reason("a", *queue, left={"research": 2.0}) == (
        "the budget of research has 2.00 USD left today (UTC), and the job costs up to 3.00 USD"
    )


def test_job_of_unknown_cost_starts_alone_in_its_project():
    queue = job("a", project="p", cost=None), job("b", project="p", cost=None), job("c", project="p", cost=0.1)
    assert starts(*queue, left={"p": 2.0}) == ["a"]


def test_job_of_unknown_cost_waits_for_a_spent_budget():
    assert starts(job("a", project="p", cost=None), left={"p": 0.0}) == []


def test_job_dearer_than_a_days_budget_says_that_it_will_never_start():
    assert reason("a", job("a", project="research", cost=20.5), left={"research": 20.0}) == (
        "will never start: costs up to 20.50 USD, and the budget of research is 20.00 USD a day"
    )


def test_small_sums_are_told_apart_and_have_their_currency():
    queue = job("a", project="p", cost=0.0041, currency="EUR")
    assert reason("a", queue, left={"p": 0.002}) == (
        "the budget of p has 0.0020 EUR left today (UTC), and the job costs up to 0.0041 EUR"
    )


def test_one_budget_goes_to_the_first_wherever_it_runs_and_each_place_has_its_own_room():
    queue = (
        job("a", 4, project="p", cost=2.0),
        job("b", on="far", priority=1, project="p", cost=2.0),
        job("c", on="far"),
    )
    assert starts(*queue, left={"p": 2.0}) == ["b"]
    assert starts(*queue, left={"p": 4.0}) == ["b", "a"]


jobs = st.builds(
    Waiting,
    id=st.uuids().map(str),
    demand=st.builds(Resources, cpus=st.integers(1, 6), gpus=st.integers(0, 2), memory=st.integers(0, 8)),
    priority=st.integers(-1, 1),
    number=st.integers(0, 100),
    project=st.sampled_from(["p", "q"]),
    cost=st.none() | st.floats(0, 3),
    seconds=st.none() | st.floats(0, 100),
)


@given(st.lists(jobs, max_size=12, unique_by=lambda one: one.id), st.floats(0, 5))
def test_whatever_starts_fits_and_stays_within_the_budget_and_the_rest_has_reasons(queue, budget):
    capacity = Resources(6, 2, 8)
    decided = plan(queue, [], {"": capacity}, {"p": budget}, {"p": 3.0}, now=NOW)
    started = [one for one in queue if one.id in decided.start]
    for side in ("cpus", "gpus", "memory"):
        assert sum(getattr(one.demand, side) for one in started) <= getattr(capacity, side)
    known = [one.cost for one in started if one.project == "p" and one.cost is not None]
    unknown = [one for one in started if one.project == "p" and one.cost is None]
    assert math.fsum(known) <= budget + 1e-9
    assert len(unknown) <= 1
    assert set(decided.reasons) == {one.id for one in queue} - set(decided.start)
    assert all(decided.reasons.values())  # none waits for its next try


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(1), "1 CPU"),
        (Resources(4, 1, 8 * 2**30), "4 CPUs, 1 GPU, 8 GiB"),
        (Resources(0.5, 0, 512 * 2**20), "0.5 CPUs, 0.5 GiB"),
    ],
)
def test_resources_read_as_people_write_them(resources, text):
    assert resources.text() == text
