"""What the queue does with an end: retries with back-off, deadlines, stops."""

import pytest

from sp500.commands.jobs import queue_flags
from sp500.jobs.queue import budget, retries
from sp500.jobs.queue.job import Job, Use
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState, Status

NOW = 1_000_000.0


def job(**more):
    base = {
        "number": 1, "id": "a", "name": "a", "target": {"on": "local"}, "project": "p", "priority": 0,
        "queued_elsewhere": False, "demand": Resources(1), "seconds": None, "hourly": 0.0, "retries": 2,
        "deadline": None, "state": JobState.RUNNING, "reason": "runs", "starts": 1, "failures": 0, "submitted": True,
        "stop_asked": None, "not_before": 0.0, "claimed": NOW - 100, "started": NOW - 90,
    }  # fmt: skip
    return Job(**base | more)


def failed(**more):
    base = {"exit_code": 1, "started": NOW - 90, "ended": NOW, "retryable": True}
    return Status(JobState.FAILED, "ended with exit code 1", **base | more)


def test_failure_that_may_end_otherwise_is_tried_again_later_and_counted():
    found = retries.advance(job(), failed(), NOW).columns()
    assert (found["state"], found["failures"], found["submitted"]) == ("QUEUED", 1, False)
    assert found["not_before"] == NOW + 10
    assert found["reason"] == "start 1 of 3 failed (ended with exit code 1); the next is at 13:46:50 UTC"


def test_end_by_a_clock_that_was_set_back_is_no_earlier_than_the_start():
    found = retries.advance(job(retries=0), failed(ended=NOW - 3600), NOW - 3600).columns()
    assert (found["started"], found["ended"]) == (NOW - 90, NOW - 90)
    running = job(started=NOW)
    assert queue_flags.format_run_time(running, NOW - 3614) == "0:00:00"


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (99, 360)])
def test_wait_doubles_up_to_a_limit(failures, seconds):
    assert retries.wait(failures) == seconds


DONE = Status(JobState.SUCCEEDED, "ended with exit code 0", 0, NOW - 90, NOW)
LOST = Status(JobState.LOST, "its cluster is gone", retryable=True)
WAITED = job(state=JobState.PENDING, reason="pod a-head: ImagePullBackOff", started=None)
LAST = {"state": "FAILED", "exit_code": 1, "ended": NOW}
ENDS = {
    "a retry holds nothing": (job(), failed(), {"claimed": None, "started": None, "devices": []}),
    "the last start failed": (job(starts=3), failed(), LAST),
    "the last retry is left": (job(starts=2), failed(), {"state": "QUEUED"}),
    "no retries": (job(retries=0), failed(), LAST),
    "it would come again": (job(), failed(retryable=False), {"state": "FAILED"}),
    "lost": (job(), LOST, {"state": "QUEUED"}),
    "lost without retries": (job(retries=0), LOST, {"state": "LOST"}),
    "a stop is no failure": (job(stop_asked=NOW - 5), failed(), {"state": "STOPPED", "reason": "stopped on request"}),
    "stopped and gone": (job(stop_asked=NOW - 5), LOST, {"state": "STOPPED"}),
    "failed before the stop": (job(stop_asked=NOW + 60, retries=0), failed(), LAST),
    "a stop that came too late": (job(stop_asked=NOW - 5), DONE, {"state": "SUCCEEDED"}),
    "stopped at the deadline": (
        job(deadline=50.0),
        Status(JobState.STOPPED, "stopped", ended=NOW),
        {"state": "FAILED", "reason": "the deadline of 50 s passed", "exit_code": 4},
    ),
    "ended before the deadline": (job(deadline=99.0, retries=0), failed(ended=NOW - 10), {"reason": failed().reason}),
    "never ran": (
        WAITED,
        Status(JobState.FAILED, "PreRunningDeadline"),
        {"reason": f"PreRunningDeadline; before that: {WAITED.reason}"},
    ),
    "repeated by the executor": (job(), Status(JobState.PENDING, "is tried again", failures=2), {"failures": 2}),
}


@pytest.mark.parametrize(("before", "status", "after"), ENDS.values(), ids=ENDS)
def test_end_of_a_start_is_judged(before, status, after):
    assert retries.advance(before, status, NOW).columns().items() >= after.items()


def test_retry_is_billed_for_the_start_that_failed():
    seen = retries.advance(job(placed=NOW - 95, target={"on": "kuberay"}), failed(), NOW)
    assert (seen.releases, seen.placed, seen.started) == (True, NOW - 95, NOW - 90)
    assert (seen.columns()["placed"], seen.apply(job()).placed) == (None, None)


def test_clock_that_is_set_does_not_make_a_failure_of_its_own_late_nor_a_late_one_its_own():
    assert retries.is_late(job(deadline=50.0), 100.0)
    limited = job(deadline=200.0, retries=0)
    stepped = retries.advance(limited, failed(ended=NOW + 86400), NOW + 86401, elapsed=101.0).columns()
    assert stepped["reason"] == failed().reason
    back = Status(JobState.STOPPED, "stopped", ended=NOW - 3600)
    assert retries.advance(limited, back, NOW - 3600, elapsed=201.0).columns()["exit_code"] == 4


# Budgets: 86,400 s are a day; NOW lies 13 h 46 min 40 s after a midnight.


HELD = {"started": None, "queued_elsewhere": True, "target": {"on": "kuberay"}}
LEFT = {
    "an hour used and half an hour to come": (
        [(-7200, -3600, 1.0)],
        {"hourly": 2.0, "seconds": 1800.0},
        900,
        8.0,
    ),
    "yesterday's use from midnight on": ([(-49600 - 3600, -49600 + 1800, 1.0)], {"hourly": 0.0}, 0, 9.5),
    "longer than expected": ([], {"hourly": 1.0, "seconds": 60.0}, 3600, 0.0),
    "within the expected time": ([], {"hourly": 1.0, "seconds": 60.0}, 59, 10 - 60 / 3600),
    "without an end": ([], {"hourly": 0.01}, 100, 0.0),
    "never taken by its cluster": ([], {"hourly": 1.0, "seconds": 3600.0, "submitted": False}, 36000, 9.0),
    "held back by Kueue": ([], {"hourly": 1.0, "seconds": 3600.0, **HELD}, 36000, 9.0),
}


@pytest.mark.parametrize(("used", "running", "since", "left"), LEFT.values(), ids=LEFT)
def test_budget_counts_what_was_used_today_and_what_runs_will_use(used, running, since, left):
    assert budget.midnight(NOW) == NOW - 49600
    uses = [Use("a", "p", NOW + first, NOW + last, hourly) for first, last, hourly in used]
    uses.append(Use("b", "q", NOW - 3600, NOW, 1.0))
    now_running = [job(claimed=NOW - since, **running)]
    remaining = budget.remaining_budgets({"p": 10.0, "q": 3.0}, uses, now_running, NOW)
    assert remaining == {"p": pytest.approx(left), "q": pytest.approx(2.0)}


def test_start_that_has_ended_and_was_settled_costs_no_more_whoever_queued_it():
    for elsewhere in (False, True):
        ended = {"state": JobState.SUCCEEDED, "claimed": None, "ended": NOW}
        over = job(hourly=1.0, queued_elsewhere=elsewhere, paid=0.025, **ended)
        assert over.cost(NOW + 3600) == 0.025
        assert over.held_since is None


def test_highest_cost_is_that_of_its_hours():
    assert budget.highest_cost(3.6, 1000.0) == pytest.approx(1.0)
    assert budget.highest_cost(0.0, None) == 0.0
    assert budget.highest_cost(1.0, None) is None
