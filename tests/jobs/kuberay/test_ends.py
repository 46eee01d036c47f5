"""What is left on the cluster after each kind of end, by the operator's rules for deletion and the job's own."""

import pytest
from kube_operator import Operator


def fail(operator):
    operator.to_running()
    operator.fail(3)


def succeed(operator):
    operator.to_running()
    operator.succeed()


def miss_the_deadline(operator):
    operator.to_running()
    operator.end("DeadlineExceeded")


def miss_the_deadline_while_the_submitter_waits(operator):
    for step in (operator.initialize, operator.start_pods, operator.submit, operator.start_submitter):
        step()
    operator.container(operator.submitter, {"waiting": {"reason": "CreateContainerConfigError"}})
    operator.end("DeadlineExceeded")


def never_start(operator):
    operator.initialize()
    operator.ready(operator.head)
    operator.end("PreRunningDeadlineExceeded")


@pytest.mark.parametrize(
    ("given", "happens", "left", "after"),
    [
        ({}, fail, ["submitter"], 0),
        ({}, miss_the_deadline, ["submitter"], 0),
        ({}, never_start, [], 0),
        ({"keep_failed": 60}, fail, ["head", "submitter"], 0),
        ({"keep_failed": 60}, fail, ["submitter"], 60),
        ({"keep_failed": 60}, never_start, ["head"], 0),
        ({}, succeed, ["head", "submitter"], 0),
        ({}, succeed, ["submitter"], 300),
        ({"keep_succeeded": 0}, succeed, ["submitter"], 0),
        ({"queue": "research"}, succeed, ["submitter"], 0),
        ({"queue": "research"}, fail, ["submitter"], 0),
        ({"queue": "research", "keep_succeeded": 60}, fail, ["head", "submitter", "worker", "worker"], 0),
    ],
)
def test_pods_that_are_left_after_an_end(kube, executor, requested, given, happens, left, after):
    executor.submit("night-1", requested(workers=2, **given))
    operator = Operator(kube.store, "night-1")
    happens(operator)
    operator.tidy(after)
    assert operator.pods() == left


@pytest.mark.parametrize(
    ("happens", "ended", "left"),
    [
        (miss_the_deadline_while_the_submitter_waits, [], []),
        (miss_the_deadline, [], []),
        (fail, [{"type": "Failed", "status": "True"}], ["submitter"]),  # its log stays
        (succeed, [{"type": "Complete", "status": "True"}], ["submitter"]),
    ],
)
def test_stop_of_a_job_that_failed_takes_the_submitter_that_waits_for_a_cluster_which_is_gone(
    kube, executor, requested, happens, ended, left
):
    executor.submit("night-1", requested(workers=2))
    operator = Operator(kube.store, "night-1")
    happens(operator)
    kube.store.set("jobs", "night-1", conditions=ended)
    operator.tidy(1000)
    executor.stop("night-1")
    kube.store.collect()
    assert operator.pods() == left
    assert executor.status("night-1").state.finished


def test_job_of_somebody_else_is_not_taken_for_the_submitter(kube, executor, requested):
    executor.submit("night-1", requested())
    Operator(kube.store, "night-1").end("DeadlineExceeded")
    kube.store.put("jobs", {"metadata": {"name": "night-1"}, "spec": {}})
    executor.stop("night-1")
    kube.store.collect()
    assert kube.store.get("jobs", "night-1")
