"""What schema and operator accept and what then does not work: refused, and told apart from the operator's rules."""

import pytest

from sp500.jobs.operator import cluster_rules, rules

HEAD = "spec/headGroupSpec"
HEAD_RAY = f"{HEAD}/template/spec/containers/0"
WORKER_POD = "spec/workerGroupSpecs/0/template/spec"
WORKER_RAY = f"{WORKER_POD}/containers/0"
SUBMITTER = "spec/submitterPodTemplate/spec"
# What is changed, and the path that the message begins with.
HEAD_PATH = "spec.headGroupSpec.template.spec.containers"
WORKER_PATH = "spec.workerGroupSpecs[0].template.spec.containers[0].resources.requests.memory"
STORE = "rayStartParams/object-store-memory"
CLUSTER_TRAPS = [
    ({f"{HEAD}/template/spec/containers/1": {"name": "ray-head"}, f"{HEAD_RAY}/name": "logs"}, f"{HEAD_PATH}[1]"),
    ({f"{HEAD_RAY}/ports/1/name": "web"}, f"{HEAD_PATH}[0].ports"),
    ({f"{WORKER_RAY}/resources/requests/memory": "2Gi"}, WORKER_PATH),
    ({f"{HEAD_RAY}/resources/limits/memory": ...}, f"{HEAD_PATH}[0].resources.limits.memory"),
    ({f"spec/workerGroupSpecs/0/{STORE}": str(3 * 2**30)}, f"spec.workerGroupSpecs[0].{STORE.replace('/', '.')}"),
    ({"spec/autoscalerOptions/version": ...}, "spec.autoscalerOptions.version"),
    ({"spec/rayVersion": "nightly", "spec/authOptions/mode": "token"}, "spec.rayVersion"),
]
SUBMITTER_PATH = "spec.submitterPodTemplate.spec"
OF_CONTAINER, CONTAINER = f"{SUBMITTER}/containers/0", f"{SUBMITTER_PATH}.containers[0]"
CAPABILITIES, ESCALATION = "securityContext/capabilities", "securityContext/allowPrivilegeEscalation"
UNCONFINED = {f"{SUBMITTER}/securityContext/seccompProfile": {"type": "Unconfined"}}
JOB_TRAPS = [
    ({"spec/submitterPodTemplate": ...}, "spec.submitterPodTemplate"),
    ({f"{OF_CONTAINER}/name": "submit"}, f"{CONTAINER}.name"),
    ({f"{OF_CONTAINER}/{CAPABILITIES}": ...}, f"{CONTAINER}.securityContext.capabilities.drop"),
    ({f"{OF_CONTAINER}/{ESCALATION}": True}, f"{CONTAINER}.securityContext.allowPrivilegeEscalation"),
    ({f"{SUBMITTER}/securityContext/runAsNonRoot": ...}, f"{SUBMITTER_PATH}.securityContext.runAsNonRoot"),
    (UNCONFINED, f"{SUBMITTER_PATH}.securityContext.seccompProfile"),
    ({"spec/activeDeadlineSeconds": 600}, "spec.preRunningDeadlineSeconds"),
]


@pytest.mark.parametrize(
    ("manifest", "changes", "path"),
    [*(("cluster", *trap) for trap in CLUSTER_TRAPS), *(("rayjob", *trap) for trap in JOB_TRAPS)],
)
def test_what_cannot_work_is_refused_as_a_rule_of_ours(request, changed, manifest, changes, path):
    violations = rules.violations(changed(request.getfixturevalue(manifest), changes))
    assert [violation.path for violation in violations if violation.ours] == [path]


def test_every_rule_of_ours_has_a_trap():
    # Four of the traps are one rule's: a submitter that is not as restricted as its head.
    assert len(CLUSTER_TRAPS) == len(cluster_rules.CLUSTER_TRAPS) + 2
    assert len(JOB_TRAPS) == len(cluster_rules.JOB_TRAPS) + 5


@pytest.mark.parametrize(
    "changes",
    [
        {f"{HEAD_RAY}/ports": ...},
        {f"{WORKER_RAY}/resources/requests/memory": "3072Mi"},
        {f"{WORKER_RAY}/resources/requests": ...},
        {f"{WORKER_POD}/containers/1": {"name": "logs"}},
    ],
)
def test_cluster_that_works_another_way_is_accepted(cluster, changed, changes):
    assert rules.violations(changed(cluster, changes)) == []


def test_job_beside_an_unrestricted_head_needs_no_submitter_of_its_own(rayjob, changed):
    head = "spec/rayClusterSpec/headGroupSpec/template/spec"
    bare = {f"{head}/securityContext": ..., "spec/submitterPodTemplate": ...}
    assert rules.violations(changed(rayjob, bare)) == []


def test_document_of_a_wrong_shape_is_refused_and_not_stumbled_over(cluster):
    for spec in (None, [], {"headGroupSpec": []}, {"headGroupSpec": {"template": {"spec": {"containers": "ray"}}}}):
        found = rules.violations(cluster | {"spec": spec, "metadata": {"name": "sp500", "labels": []}})
        assert "spec.headGroupSpec.template.spec.containers" in {one.path for one in found}
