"""Which jobs start: order, room, budgets, and that no job starves."""

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


BUSY = [Busy(Resources(cpus=3), ends=NOW + 60)]
WIDE = job("wide", 4)
FIRST_WINS = (
    job("a", 4, project="p", cost=2.0),
    job("b", on="far", priority=1, project="p", cost=2.0),
    job("c", on="far"),
)
STARTS = {
    "higher priority first": ([job("a"), job("b", priority=5), job("c", priority=5)], {"cpus": 2}, "bc"),
    "any size shares the room": ([job("a", 2), job("b", 1), job("c", 1), job("d", 1)], {}, "abc"),
    "a narrow job would put off the wide one": ([WIDE, job("x", 1, seconds=61)], {"busy": BUSY}, ""),
    "a narrow job may put off the wide one": ([WIDE, job("x", 1)], {"busy": BUSY}, ""),
    "a narrow job ends in time": ([WIDE, job("x", 1, seconds=60)], {"busy": BUSY}, "x"),
    # In 60 s three CPUs come free beside the one that is: the wide job takes three, one is spare.
    "the wide job leaves room over": ([job("wide", 3), job("x", 1), job("y", 1)], {"busy": BUSY}, "x"),
    # Four CPUs are free; the wide job waits for six, which leaves two of the eight that there will be.
    "unknown when there is room": (
        [job("a", 6), *(job(name) for name in "bcde")],
        {"busy": [Busy(Resources(cpus=4))], "cpus": 8},
        "bc",
    ),
    "behind a job without an end": ([WIDE, job("x", 1, seconds=1)], {"busy": [Busy(Resources(cpus=3))]}, ""),
    "a job that never fits blocks no other": ([job("b", 8), job("s")], {}, "s"),
    "a retry before its time": ([job("a", not_before=NOW + 5)], {}, ""),
    "a retry at its time": ([job("a", not_before=NOW)], {}, "a"),
    "no cost, no money": ([job("a", project="p", cost=0.0)], {"left": {"p": 0.0}}, "a"),
    "over the budget": (
        [job("a", project="p", cost=3.0), job("b", project="p", cost=1.0), job("c", cost=9.0)],
        {"left": {"p": 2.0}},
        "bc",
    ),
    "unknown costs": (
        [job("a", project="p", cost=None), job("b", project="p", cost=None), job("c", project="p", cost=0.1)],
        {"left": {"p": 2.0}},
        "a",
    ),
    "an unknown cost and a spent budget": ([job("a", project="p", cost=None)], {"left": {"p": 0.0}}, ""),
    "money for the first alone, wherever it runs": (FIRST_WINS, {"left": {"p": 2.0}}, "b"),
    "money for both": (FIRST_WINS, {"left": {"p": 4.0}}, "ba"),
}


@pytest.mark.parametrize(("queue", "more", "started"), STARTS.values(), ids=STARTS)
def test_start_is_by_order_room_and_money_and_no_job_starves(queue, more, started):
    assert planned(queue, **more).start == list(started)


REASONS = {
    "waits behind wide": ([WIDE, job("a", number=200)], {"busy": BUSY}),
    "will never fit: needs 8 CPUs (4 in all)": ([job("a", 8)], {}),
    "waits for 4 CPUs (1 free)": ([job("a", 4)], {"busy": [Busy(Resources(cpus=3))]}),
    "the budget of research has 2.00 USD left today (UTC), and the job costs up to 3.00 USD": (
        [job("a", project="research", cost=3.0)],
        {"left": {"research": 2.0}},
    ),
    "will never start: costs up to 20.50 USD, and the budget of research is 20.00 USD a day": (
        [job("a", project="research", cost=20.5)],
        {"left": {"research": 20.0}},
    ),
    "0.0020 EUR left today (UTC), and the job costs up to 0.0041 EUR": (
        [job("a", project="p", cost=0.0041, currency="EUR")],
        {"left": {"p": 0.002}},
    ),
}


@pytest.mark.parametrize(("text", "queue", "more"), [(text, *case) for text, case in REASONS.items()], ids=REASONS)
def test_job_that_waits_says_what_it_lacks(text, queue, more):
    assert text in planned(queue, **more).reasons["a"]


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
