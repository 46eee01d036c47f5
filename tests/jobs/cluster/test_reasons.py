import pytest

from sp500.jobs.cluster import reasons


def pod(**status):
    return {"metadata": {"name": "head"}, "status": status}


def container(state, name="ray-head", **more):
    return {"name": name, "state": state, **more}


IMAGE = {"reason": "ErrImagePull", "message": "registry/a:1: gone"}
ENDED = {"reason": "Error", "exitCode": 1}
STATES = [
    ({"running": {}}, {}, []),
    ({"waiting": {"reason": "ContainerCreating"}}, {}, []),
    ({"terminated": {"reason": "Completed", "exitCode": 0}}, {}, []),
    ({"waiting": {"reason": "ImagePullBackOff"}}, {"image": "a:1"}, ["waits: ImagePullBackOff (a:1)"]),
    ({"waiting": IMAGE}, {"image": "registry/a:1"}, ["waits: ErrImagePull: registry/a:1: gone"]),
    ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, {}, ["ended: OOMKilled (exit code 137)"]),
    (
        {"waiting": {"reason": "CrashLoopBackOff"}},
        {"lastState": {"terminated": ENDED}},
        ["waits: CrashLoopBackOff", "ended: Error (exit code 1)"],
    ),
]


@pytest.mark.parametrize(("state", "more", "lines"), STATES)
@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_container_tells_what_keeps_it(state, more, lines, kind):
    found = reasons.of_pods([pod(**{kind: [container(state, **more)]})])
    assert found == [f"pod head: container ray-head {line}" for line in lines]


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "cpu"}


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        ({}, []),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, []),
        ({"conditions": [UNSCHEDULABLE]}, ["pod head: Unschedulable: cpu"]),
        ({"reason": "Evicted", "message": "disk"}, ["pod head: Evicted: disk"]),
    ],
)
def test_pod_tells_what_keeps_it(status, lines):
    assert reasons.of_pods([pod(**status)]) == lines


def test_ready_pod_has_no_reasons_left():
    once = container({"running": {}}, lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    found = pod(conditions=[{"type": "Ready", "status": "True"}], containerStatuses=[once])
    assert reasons.of_pods([found]) == []


def event(reason, message, second, kind="Pod", name="head", type_="Warning", uid=""):
    about = {"kind": kind, "name": name, "uid": uid or name}
    when = f"2026-01-01T00:00:{second:02}Z"
    return {"type": type_, "reason": reason, "message": message, "lastTimestamp": when, "involvedObject": about}


def test_events_tell_the_last_warning_of_each_kind_about_what_was_asked():
    events = [
        event("FailedMount", "again", 9),
        event("FailedMount", "once", 1),
        event("Pulled", "fine", 3, type_="Normal"),
        event("FailedMount", "of another", 4, name="other"),
        event("FailedToCreateHeadPod", "quota", 5, kind="RayCluster", name="sp500"),
        event("FailedToCreateWorkerPod", "of its predecessor", 6, kind="RayCluster", name="sp500", uid="older"),
    ]
    subjects = [{"metadata": {"name": name, "uid": name}} for name in ("head", "sp500")]
    assert reasons.of_events(events, [*subjects, {}]) == [
        "pod head: FailedMount: again",
        "raycluster sp500: FailedToCreateHeadPod: quota",
    ]


def test_conditions_of_a_ray_cluster_explain_why_it_has_no_pods():
    conditions = [
        {"type": "HeadPodReady", "status": "False", "reason": "HeadPodNotFound"},
        {"type": "RayClusterSuspended", "status": "False", "reason": "RayClusterSuspended"},
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateHeadPod", "message": "quota"},
    ]
    cluster = {"metadata": {"name": "sp500"}, "status": {"conditions": conditions}}
    (line,) = reasons.of_conditions(cluster)
    assert line.endswith("FailedCreateHeadPod: quota")
    assert reasons.of_conditions({}) == []


QUOTA = "exceeded quota: sp500, requested: requests.cpu=1, used: requests.cpu=16, limited: requests.cpu=16"


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (f'Failed to create worker Pod sp500/a-worker-x, pods "a-worker-x" is forbidden: {QUOTA}', QUOTA),
        ('Error creating: pods "a-x" is forbidden: violates PodSecurity "x"', 'violates PodSecurity "x"'),
        ("Failed to create head Pod sp500/a, no endpoints", "Failed to create head Pod sp500/a, no endpoints"),
    ],
)
def test_refusal_begins_with_the_servers_reason(message, kept):
    warning = event("FailedToCreateWorkerPod", message, 1, kind="RayCluster", name="a")
    assert reasons.last_warnings([warning]) == [f"raycluster a: FailedToCreateWorkerPod: {kept}"]
