"""What schema and operator accept and what then does not work: refused, and told apart from the operator's rules."""

import pytest

from sp500.jobs.manifests.manifest import clusters
from sp500.jobs.operator import project_rules, rules

HEAD = "spec/headGroupSpec"
HEAD_RAY = f"{HEAD}/template/spec/containers/0"
WORKER_POD = "spec/workerGroupSpecs/0/template/spec"
WORKER_RAY = f"{WORKER_POD}/containers/0"
SUBMITTER = "spec/submitterPodTemplate/spec"
CLUSTER_TRAPS = [
    (
        {f"{HEAD}/template/spec/containers/1": {"name": "ray-head"}, f"{HEAD_RAY}/name": "logs"},
        "spec.headGroupSpec.template.spec.containers[1]",
        ["is ray-head, after another", "first"],
    ),
    (
        {f"{HEAD_RAY}/ports/1/name": "web"},
        "spec.headGroupSpec.template.spec.containers[0].ports",
        ["no port named dashboard", "8265"],
    ),
    (
        {f"{WORKER_RAY}/resources/requests/memory": "2Gi"},
        "spec.workerGroupSpecs[0].template.spec.containers[0].resources.requests.memory",
        ["is 2Gi, the limit 3Gi", "equal"],
    ),
    (
        {f"{HEAD_RAY}/resources/limits/memory": ...},
        "spec.headGroupSpec.template.spec.containers[0].resources.limits.memory",
        ["is unset"],
    ),
    (
        {"spec/workerGroupSpecs/0/rayStartParams/object-store-memory": str(3 * 2**30)},
        "spec.workerGroupSpecs[0].rayStartParams.object-store-memory",
        ["3221225472 bytes of 3221225472", "a third"],
    ),
    (
        {"spec/autoscalerOptions/version": ..., "spec/workerGroupSpecs/0/idleTimeoutSeconds": ...},
        "spec.autoscalerOptions.version",
        ["version: v2"],
    ),
]
JOB_TRAPS = [
    ({"spec/submitterPodTemplate": ...}, "spec.submitterPodTemplate", ["next to a restricted head", "set one"]),
    (
        {f"{SUBMITTER}/containers/0/name": "submit"},
        "spec.submitterPodTemplate.spec.containers[0].name",
        ["is submit", "ray-job-submitter"],
    ),
    (
        {f"{SUBMITTER}/containers/0/securityContext/capabilities": ...},
        "spec.submitterPodTemplate.spec.containers[0].securityContext.capabilities.drop",
        ["not as restricted as the head"],
    ),
    (
        {f"{SUBMITTER}/containers/0/securityContext/allowPrivilegeEscalation": True},
        "spec.submitterPodTemplate.spec.containers[0].securityContext.allowPrivilegeEscalation",
        ["not as restricted"],
    ),
    (
        {f"{SUBMITTER}/securityContext/runAsNonRoot": ...},
        "spec.submitterPodTemplate.spec.securityContext.runAsNonRoot",
        ["not as restricted"],
    ),
    (
        {f"{SUBMITTER}/securityContext/seccompProfile": {"type": "Unconfined"}},
        "spec.submitterPodTemplate.spec.securityContext.seccompProfile",
        ["not as restricted"],
    ),
    (
        {"spec/activeDeadlineSeconds": 600},
        "spec.preRunningDeadlineSeconds",
        ["600 is not before activeDeadlineSeconds 600"],
    ),
]


def test_cluster_without_a_version_needs_wget_for_its_probes(cluster, changed):
    unversioned = changed(cluster, {"spec/rayVersion": "nightly"})
    [found] = [one for one in rules.violations(unversioned) if one.ours]
    assert (found.path, "wget" in str(found)) == ("spec.rayVersion", True)


@pytest.mark.parametrize(("changes", "path", "words"), CLUSTER_TRAPS)
def test_cluster_that_cannot_work_is_refused_as_a_rule_of_ours(cluster, changed, changes, path, words):
    (found,) = rules.violations(changed(cluster, changes))
    assert (found.path, found.ours) == (path, True)
    assert all(word in str(found) for word in words)


@pytest.mark.parametrize(("changes", "path", "words"), JOB_TRAPS)
def test_job_that_cannot_work_is_refused_as_a_rule_of_ours(rayjob, changed, changes, path, words):
    (found,) = rules.violations(changed(rayjob, changes))
    assert (found.path, found.ours) == (path, True)
    assert all(word in str(found) for word in words)


@pytest.mark.parametrize("rule", project_rules.CLUSTER_RULES)
def test_every_rule_of_ours_for_a_cluster_is_broken_by_some_change(cluster, changed, rule):
    rows = [row[0] for row in CLUSTER_TRAPS] + [{"spec/rayVersion": "nightly"}]
    assert any(list(rule(one)) for row in rows for one in clusters(changed(cluster, row)))


@pytest.mark.parametrize("rule", project_rules.JOB_RULES)
def test_every_rule_of_ours_for_a_job_is_broken_by_some_change(rayjob, changed, rule):
    assert any(list(rule(changed(rayjob, row[0]))) for row in JOB_TRAPS)


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
