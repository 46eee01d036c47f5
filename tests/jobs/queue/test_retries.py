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


@pytest.mark.parametrize("more", [{"starts": 3}, {"retries": 0}])
def test_last_failure_is_the_end(more):
    found = retries.advance(job(**more), failed(), NOW).columns()
    assert (found["state"], found["exit_code"], found["ended"]) == ("FAILED", 1, NOW)


def test_failure_that_would_come_again_is_the_end():
    assert retries.advance(job(), failed(retryable=False), NOW).columns()["state"] == "FAILED"


def test_lost_job_is_tried_again_only_where_retries_are_left():
    lost = Status(JobState.LOST, "its cluster is gone", retryable=True)
    assert retries.advance(job(), lost, NOW).columns()["state"] == "QUEUED"
    assert retries.advance(job(retries=0), lost, NOW).columns()["state"] == "LOST"


def test_stop_is_no_failure_and_is_not_tried_again():
    found = retries.advance(job(stop_asked=NOW - 5), failed(), NOW).columns()
    assert (found["state"], found["reason"]) == ("STOPPED", "stopped on request")


def test_failure_that_came_before_the_stop_keeps_its_own_end():
    found = retries.advance(job(stop_asked=NOW + 60, retries=0), failed(), NOW + 61).columns()
    assert (found["state"], found["exit_code"]) == ("FAILED", 1)


def test_retry_waits_without_holding_anything():
    found = retries.advance(job(), failed(), NOW).columns()
    assert (found["claimed"], found["started"], found["devices"]) == (None, None, [])


def test_retry_is_billed_for_the_start_that_failed():
    seen = retries.advance(job(placed=NOW - 95, target={"on": "kuberay"}), failed(), NOW)
    assert (seen.releases, seen.placed, seen.started) == (True, NOW - 95, NOW - 90)
    assert (seen.columns()["placed"], seen.apply(job()).placed) == (None, None)


def test_success_that_a_stop_came_too_late_for_is_a_success():
    done = Status(JobState.SUCCEEDED, "ended with exit code 0", 0, NOW - 90, NOW)
    assert retries.advance(job(stop_asked=NOW - 5), done, NOW).columns()["state"] == "SUCCEEDED"


def test_deadline_of_the_queue_makes_a_stop_a_failure_with_its_exit_code():
    late = job(deadline=50.0)
    assert retries.is_late(late, 100.0)
    found = retries.advance(late, Status(JobState.STOPPED, "stopped", ended=NOW), NOW).columns()
    assert (found["state"], found["reason"], found["exit_code"]) == ("FAILED", "the deadline of 50 s passed", 4)


def test_clock_that_is_set_does_not_make_a_failure_of_its_own_late_nor_a_late_one_its_own():
    limited = job(deadline=200.0, retries=0)
    stepped = retries.advance(limited, failed(ended=NOW + 86400), NOW + 86401, elapsed=101.0).columns()
    assert stepped["reason"] == "ended with exit code 1"
    back = Status(JobState.STOPPED, "stopped", ended=NOW - 3600)
    assert retries.advance(limited, back, NOW - 3600, elapsed=201.0).columns()["exit_code"] == 4


def test_job_that_ended_before_its_deadline_is_judged_by_its_own_end():
    found = retries.advance(job(deadline=99.0, retries=0), failed(ended=NOW - 10), NOW).columns()
    assert found["reason"] == "ended with exit code 1"


def test_job_that_never_ran_keeps_what_it_waited_for():
    waiting = job(state=JobState.PENDING, reason="pod a-head: ImagePullBackOff", started=None)
    late = Status(JobState.FAILED, "PreRunningDeadlineExceeded")
    assert retries.advance(waiting, late, NOW).columns()["reason"] == (
        "PreRunningDeadlineExceeded; before that: pod a-head: ImagePullBackOff"
    )


def test_failures_that_an_executor_repeated_itself_are_counted():
    again = Status(JobState.PENDING, "is tried again", failures=2)
    assert retries.advance(job(), again, NOW).columns()["failures"] == 2


# Budgets: 86,400 s are a day; NOW lies 13 h 46 min 40 s after a midnight.


def test_budget_counts_what_was_used_today_and_what_runs_will_use():
    uses = [Use("a", "p", NOW - 7200, NOW - 3600, 1.0), Use("b", "q", NOW - 7200, NOW, 99.0)]
    running = job(hourly=2.0, seconds=1800.0, claimed=NOW - 900)
    assert budget.remaining_budgets({"p": 10.0}, uses, [running], NOW) == {"p": pytest.approx(10 - 1.0 - 2.0 * 0.5)}


def test_use_of_yesterday_costs_today_only_from_midnight_on():
    uses = [Use("a", "p", budget.midnight(NOW) - 3600, budget.midnight(NOW) + 1800, 1.0)]
    assert budget.remaining_budgets({"p": 10.0}, uses, [], NOW) == {"p": pytest.approx(9.5)}


def test_job_that_runs_longer_than_expected_may_take_all_that_is_left():
    running = job(hourly=1.0, seconds=60.0, claimed=NOW - 3600)
    assert budget.remaining_budgets({"p": 10.0, "q": 3.0}, [], [running], NOW) == {"p": 0.0, "q": 3.0}
    assert budget.remaining_budgets({"p": 10.0}, [], [running], NOW - 3600 + 59)["p"] > 9.9


def test_job_without_an_end_takes_all_that_is_left():
    assert budget.remaining_budgets({"p": 10.0}, [], [job(hourly=0.01)], NOW) == {"p": 0.0}


def test_start_that_its_cluster_never_took_costs_nothing_however_long_it_is_tried():
    trying = job(hourly=1.0, seconds=3600.0, claimed=NOW - 36000, submitted=False)
    assert budget.remaining_budgets({"p": 10.0}, [], [trying], NOW) == {"p": pytest.approx(9.0)}


def test_time_that_kueue_holds_a_job_back_costs_nothing():
    held = job(
        hourly=1.0, seconds=3600.0, claimed=NOW - 36000, started=None, queued_elsewhere=True, target={"on": "kuberay"}
    )
    assert held.cost(NOW) == 0.0
    assert budget.remaining_budgets({"p": 10.0}, [], [held], NOW) == {"p": pytest.approx(9.0)}


def test_start_that_has_ended_and_was_settled_costs_no_more_whoever_queued_it():
    for elsewhere in (False, True):
        over = job(
            hourly=1.0, state=JobState.SUCCEEDED, claimed=None, queued_elsewhere=elsewhere, ended=NOW, paid=0.025
        )
        assert over.cost(NOW + 3600) == 0.025
        assert over.held_since is None


def test_highest_cost_is_that_of_its_hours():
    assert budget.highest_cost(3.6, 1000.0) == pytest.approx(1.0)
    assert budget.highest_cost(0.0, None) == 0.0
    assert budget.highest_cost(1.0, None) is None
