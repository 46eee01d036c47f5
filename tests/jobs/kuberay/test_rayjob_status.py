"""What `status` says at each step of the operator's documented sequences, read over HTTP."""

import pytest
from kube_operator import IMAGE, Operator

from sp500.jobs.state import JobState, Replicas, Role


@pytest.fixture
def operator(kube, executor, requested):
    """The operator of a job with two workers and two retries, submitted and not yet seen by it."""
    executor.submit("night-1", requested(retries=2, workers=2))
    return Operator(kube.store, "night-1")


@pytest.fixture
def look(executor):
    """State and reason now."""

    def looked():
        seen = executor.status("night-1")
        assert len(seen.reason.splitlines()) == 1
        return seen.state, seen.reason

    return looked


def counts(seen):
    return {role.value: (one.ready, one.wanted) for role, one in seen.replicas.items()}


def test_job_that_succeeds_goes_through_its_states(operator, executor):
    seen = [executor.status("night-1")]
    for step in (
        operator.initialize,
        operator.start_pods,
        operator.submit,
        operator.start_submitter,
        operator.run,
        operator.succeed,
    ):
        step()
        seen.append(executor.status("night-1"))
    assert [one.state.value for one in seen] == ["PENDING"] * 5 + ["RUNNING", "SUCCEEDED"]
    none, head_and_workers = {"head": (0, 1), "worker": (0, 2)}, {"head": (1, 1), "worker": (2, 2)}
    assert [counts(one) for one in seen] == [
        none | {"submitter": (0, 1)},
        none | {"submitter": (0, 1)},
        head_and_workers | {"submitter": (0, 1)},
        head_and_workers | {"submitter": (0, 1)},
        head_and_workers | {"submitter": (1, 1)},
        head_and_workers | {"submitter": (1, 1)},
        {},
    ]
    assert [one.started is None for one in seen] == [True] * 5 + [False, False]
    assert [one.exit_code for one in seen] == [None] * 6 + [0]
    assert not any(one.retryable for one in seen)


def test_failure_is_counted_and_begins_again_until_the_retries_are_used_up(operator, executor):
    operator.to_running()
    operator.retry()
    seen = executor.status("night-1")
    assert (seen.state, seen.failures) == (JobState.PENDING, 1)
    assert "1 of 3 starts failed" in seen.reason
    operator.to_running()
    assert executor.status("night-1").state is JobState.RUNNING
    assert counts(executor.status("night-1")) == {"head": (1, 1), "worker": (2, 2), "submitter": (1, 1)}
    operator.retry()
    operator.to_running()
    operator.fail(3)
    seen = executor.status("night-1")
    assert (seen.state, seen.exit_code, seen.failures) == (JobState.FAILED, 3, 2)
    assert seen.reason == "AppFailed: Job entrypoint command failed with exit code 3: ValueError: no such ticker"


@pytest.mark.parametrize(
    ("code", "meant", "again"),
    [(1, 1, True), (137, 137, True), (-9, 137, True), (2, 2, False), (3, 3, False), (4, 4, False)],
)
def test_exit_code_is_the_commands_and_says_whether_to_start_again(operator, executor, code, meant, again):
    operator.to_running()
    operator.fail(code)
    operator.container(operator.submitter, {"terminated": {"exitCode": 1, "reason": "Error"}})
    seen = executor.status("night-1")
    assert (seen.exit_code, seen.retryable) == (meant, again)
    assert "ray-job-submitter" not in seen.reason


def test_reason_stays_the_same_between_two_tries_to_pull_and_for_the_next_pod(operator, look):
    cause = f'failed to pull and unpack image "{IMAGE}": not found'
    states = [
        {"reason": "ErrImagePull", "message": cause},
        {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}": ErrImagePull: {cause}'},
    ]
    operator.initialize()
    operator.ready(operator.head)
    said = set()
    for pod in operator.workers:
        for waiting in states:
            operator.container(pod, {"waiting": waiting})
            said.add(look()[1])
        operator.ready(pod)
    (reason,) = said
    assert reason.endswith(f"worker: container ray-worker waits: ImagePullBackOff: {cause}")


def test_hundred_workers_without_a_node_make_a_short_reason(kube, executor, requested, look):
    executor.submit("night-1", requested(workers=100))
    operator = Operator(kube.store, "night-1")
    operator.initialize()
    for worker in operator.workers:
        operator.unschedulable(worker, "0/3 nodes are available")
    _, reason = look()
    assert reason.endswith("100 workers: Unschedulable: 0/3 nodes are available")  # once for all
    assert reason.count("Unschedulable") == 1


def test_volume_that_does_not_mount_is_told_by_its_event(operator, look):
    operator.initialize()
    operator.container(operator.head, {"waiting": {"reason": "ContainerCreating"}})
    operator.warn("Pod", operator.head, "FailedMount", 'configmap "night-1-settings" not found')
    operator.warn("Pod", "night-2-abcde-head-xk2lp", "FailedMount", "of another job")
    _, reason = look()
    assert 'FailedMount: configmap "night-1-settings" not found' in reason
    assert "another job" not in reason


def test_refusal_by_the_quota_comes_before_what_room_may_repair_and_is_not_cut_off(operator, look):
    operator.initialize()
    operator.unschedulable(operator.head, f"0/2 nodes are available: {'2 Insufficient cpu, ' * 9}")
    operator.unschedulable(operator.workers[0], "0/2 nodes are available: 2 Insufficient memory.")
    operator.store.delete("pods", operator.workers[1])
    worker = f'worker Pod sp500/{operator.workers[1]}, pods "{operator.workers[1]}" is forbidden'
    quota = f"Failed to create {worker}: exceeded quota: sp500, requested: pods=1"
    operator.warn("RayCluster", operator.cluster, "FailedToCreateWorkerPod", quota)
    _, reason = look()
    assert reason.index("requested: pods=1") < reason.index("Unschedulable")
    assert "exceeded quota" in reason[:157]  # what `sp500 jobs list` shows


def test_quota_that_was_lifted_is_told_no_more(operator, look):
    operator.initialize()
    missing = operator.store.get("pods", operator.workers[1])
    operator.store.delete("pods", operator.workers[1])
    for name, why in (("FailedToCreateHeadPod", "cpu=4"), ("FailedToCreateWorkerPod", "memory=9Gi")):
        operator.warn("RayCluster", operator.cluster, name, f"exceeded quota: sp500, requested: {why}")
    assert "memory=9Gi" in look()[1]
    assert "cpu=4" not in look()[1]
    operator.store.put("pods", {key: missing[key] for key in ("metadata", "spec")})
    assert "quota" not in look()[1]


def test_warnings_of_the_start_are_no_part_of_the_end_of_a_job_that_ran(operator, look):
    operator.to_running()
    operator.warn("RayCluster", operator.cluster, "FailedToCreateWorkerPod", "exceeded quota: sp500")
    operator.end("DeadlineExceeded", "The RayJob has passed the activeDeadlineSeconds")
    operator.tidy()
    assert look()[1].startswith("DeadlineExceeded: ")
    assert "quota" not in look()[1]


def test_room_that_was_found_is_told_no_more(operator, look):
    operator.initialize()
    operator.container(operator.head, {"waiting": {"reason": "ContainerCreating"}})
    operator.warn("Pod", operator.head, "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.")
    assert "Insufficient" not in look()[1]


LOSSES = pytest.mark.parametrize(("crashed", "words"), [(True, "OOMKilled, exit code 137"), (False, "deleted")])


@LOSSES
def test_end_of_the_head_is_named_before_what_came_of_it(operator, look, crashed, words):
    operator.to_running()
    operator.replace_head(crashed=crashed)
    operator.start_submitter()
    operator.run()
    operator.fail(1)
    state, reason = look()
    assert state is JobState.FAILED
    assert words in reason.split(";")[0]
    assert "AppFailed" in reason


@LOSSES
def test_command_does_not_run_between_the_loss_of_its_head_and_its_next_start(operator, look, crashed, words):
    # The operator leaves jobStatus at RUNNING while it cannot ask Ray.
    operator.to_running()
    operator.tell(rayJobInfo={"startTime": "2026-01-01T00:00:00Z"})
    for pod in (operator.head, *operator.workers):
        operator.store.get("pods", pod)["metadata"]["creationTimestamp"] = "2025-12-31T23:59:00Z"
    assert look() == (JobState.RUNNING, "the command runs")
    operator.replace_head(crashed=crashed)
    state, reason = look()
    assert state is JobState.PENDING
    assert reason.startswith("its head was lost and replaced")
    assert words in reason
    operator.start_submitter()
    operator.tell(rayJobInfo={"startTime": "2099-01-01T00:00:00Z"})
    assert look()[0] is JobState.RUNNING


def test_command_does_not_run_without_a_head_and_no_head_is_lost_that_was_there(operator, look):
    operator.to_running()
    kept = operator.store.get("pods", operator.head)
    operator.store.delete("pods", operator.head)
    state, reason = look()
    assert state is JobState.PENDING
    assert "head was lost" in reason
    operator.store.put("pods", {key: kept[key] for key in ("metadata", "spec", "status")})
    operator.fail(1)
    assert "head" not in look()[1]


def test_reason_of_a_usage_error_is_what_stands_in_its_box(operator, look):
    box = (
        "╭─ Parsing error ────────────────────────────╮\n"
        "│ Unrecognized options: --epochz             │\n"
        "│ ────────────────────────────────────────── │\n"
        "│ For full helptext, run train.py --help     │\n"
        "╰────────────────────────────────────────────╯\n"
    )
    operator.to_running()
    operator.fail(2, log=box)
    assert look()[1].endswith("exit code 2: Unrecognized options: --epochz")


def test_forbidden_submitter_is_named_while_the_rayjob_says_nothing(operator, look):
    operator.initialize()
    operator.start_pods()
    operator.submit()
    operator.warn("Job", "night-1", "FailedCreate", 'pods "night-1-x" is forbidden: violates PodSecurity "restricted"')
    state, reason = look()
    assert state is JobState.PENDING
    assert 'FailedCreate: pods "night-1-x" is forbidden' in reason


def test_worker_out_of_memory_is_told_while_the_job_runs_and_after(operator, look):
    operator.to_running()
    operator.container(operator.workers[0], {"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    state, reason = look()
    assert state is JobState.RUNNING
    assert "OOMKilled (exit code 137)" in reason
    operator.fail(1)
    assert "OOMKilled" in look()[1]


def test_evicted_head_that_is_gone_is_told_by_its_event(operator, look):
    operator.to_running()
    operator.warn("Pod", operator.head, "FailedScheduling", "before it found its node")
    operator.warn("Pod", operator.head, "Evicted", "The node was low on resource: memory")
    operator.store.delete("pods", operator.head)
    operator.fail(1)
    state, reason = look()
    assert state is JobState.FAILED
    assert "Evicted: The node was low on resource: memory" in reason
    assert "before it found" not in reason


REPORTED = {
    "an invalid spec": (
        {"jobDeploymentStatus": "ValidationFailed", "reason": "ValidationFailed", "message": "no such mode"},
        JobState.FAILED,
        "ValidationFailed: no such mode",
    ),
    "stopped": ({"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"}, JobState.STOPPED, "stopped through Ray"),
    "suspended by somebody": ({"jobDeploymentStatus": "Suspended"}, JobState.PENDING, "suspended: spec.suspend"),
    "a word of a newer operator": ({"jobDeploymentStatus": "Hibernating"}, JobState.PENDING, "Hibernating"),
}


@pytest.mark.parametrize(("reported", "state", "words"), REPORTED.values(), ids=REPORTED)
def test_word_of_the_operator_is_a_state_with_its_reason(operator, look, reported, state, words):
    operator.tell(**reported)
    found, reason = look()
    assert found is state
    assert words in reason


def test_command_that_ended_runs_until_the_operator_has_seen_it(operator, look):
    operator.to_running()
    operator.tell(jobStatus="SUCCEEDED")
    assert look()[0] is JobState.RUNNING
    operator.end("JobDeploymentStatusTransitionGracePeriodExceeded", "the submitter did not end")
    state, reason = look()
    assert state is JobState.SUCCEEDED
    assert "submitter did not end" in reason


@pytest.fixture
def queued(kube, executor, requested):
    """The operator of a job in Kueue's queue, which suspends it, and its Workload."""
    executor.submit("night-1", requested(queue="sp500"))
    made = kube.store.patch("rayjobs", "night-1", {"spec": {"suspend": True}})
    labels = {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}
    kube.store.put("workloads", {"metadata": {"name": "rayjob-night-1-1a2b3", "labels": labels}})
    return Operator(kube.store, "night-1")


def test_job_in_kueues_queue_is_queued_with_kueues_reason(queued, look):
    why = "couldn't assign flavors to pod set head: insufficient unused quota for cpu in flavor sp500-default"
    message = why.replace(": ", ":\n")
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    queued.store.set("workloads", "rayjob-night-1-1a2b3", conditions=[condition])
    for deployment in ("", "Suspending", "Suspended"):
        queued.tell(jobDeploymentStatus=deployment)
        assert look() == (JobState.QUEUED, f"held by Kueue in queue sp500: {why}")  # on one line
    queued.store.patch("rayjobs", "night-1", {"spec": {"suspend": False}})
    queued.to_running()
    assert look()[0] is JobState.RUNNING
    # Preempted: the operator deletes the cluster, and starts again when Kueue lets it.
    queued.store.patch("rayjobs", "night-1", {"spec": {"suspend": True}})
    for deployment, ray in (("Running", "RUNNING"), ("Suspending", "RUNNING"), ("Suspended", "")):
        queued.tell(jobDeploymentStatus=deployment, jobStatus=ray, rayJobInfo={})
        assert look()[0] is JobState.QUEUED
    queued.store.delete("rayclusters", queued.cluster)
    queued.store.delete("jobs", "night-1")
    queued.store.collect()
    assert look()[0] is JobState.QUEUED
    queued.attempt += 1
    queued.store.patch("rayjobs", "night-1", {"spec": {"suspend": False}})
    queued.to_running()
    assert look()[0] is JobState.RUNNING


@pytest.mark.parametrize("denied", [True, False])
def test_queue_is_named_where_its_workload_cannot_be_read(queued, look, kube, denied):
    if denied:
        kube.store.denied.add(("list", "workloads"))
    else:
        kube.store.served.remove("workloads")
    state, reason = look()
    assert state is JobState.QUEUED
    assert "queue sp500" in reason
    assert "list workloads" in reason


def test_interactive_job_waits_with_the_commands_to_copy(kube, executor, requested, look):
    executor.submit("night-1", requested(mode="InteractiveMode", namespace="sp500"))
    operator = Operator(kube.store, "night-1")
    operator.initialize()
    operator.start_pods()
    operator.tell(jobDeploymentStatus="Waiting")
    state, reason = look()
    assert state is JobState.PENDING
    for words in (
        "kubectl -n sp500 port-forward svc/night-1-aaaaa-head-svc 8265 &",
        "--submission-id night-1 --working-dir . -- python experiments/tune.py ;",
        """patch rayjob night-1 --type merge -p '{"spec":{"jobId":"night-1"}}'""",
    ):
        assert words in reason
    assert executor.status("night-1").replicas == {Role.HEAD: Replicas(1, 1), Role.WORKER: Replicas(1, 1)}
    kube.store.patch("rayjobs", "night-1", {"spec": {"jobId": "night-1"}})
    operator.tell(jobDeploymentStatus="Running")
    operator.run()
    assert look()[0] is JobState.RUNNING


@pytest.mark.parametrize(
    ("step", "calls"), [("submitted", 2 + 1), ("initialize", 4), ("to_running", 3), ("succeed", 1), ("fail", 5)]
)
def test_look_costs_few_calls(operator, executor, kube, step, calls):
    if step in {"succeed", "fail"}:
        operator.to_running()
    if step != "submitted":
        getattr(operator, step)(*([3] if step == "fail" else []))
    kube.requests.clear()
    executor.status("night-1")
    assert len(kube.requests) == calls
