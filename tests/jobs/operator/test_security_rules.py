"""Manifests that would open the cluster or its nodes are refused, each by the id of its rule."""

import pytest

from sp500.jobs.operator import rules, security_rules

HEAD = "spec/headGroupSpec"
HEAD_POD = f"{HEAD}/template/spec"
WORKER_POD = "spec/workerGroupSpecs/0/template/spec"
SUBMITTER = "spec/submitterPodTemplate/spec"
HOST = {"name": "host", "hostPath": {"path": "/var/run"}}
CASES = [
    ("token-authentication", {"spec/authOptions": ...}, "spec.authOptions.mode"),
    ("token-authentication", {"spec/authOptions": {}}, "spec.authOptions.mode"),
    ("token-authentication", {"spec/authOptions": {"mode": "disabled"}}, "spec.authOptions.mode"),
    ("private-service", {f"{HEAD}/serviceType": "LoadBalancer"}, "spec.headGroupSpec.serviceType"),
    ("private-service", {f"{HEAD}/serviceType": "NodePort"}, "spec.headGroupSpec.serviceType"),
    (
        "private-service",
        {f"{HEAD}/headService": {"spec": {"type": "LoadBalancer"}}},
        "spec.headGroupSpec.headService.spec.type",
    ),
    ("private-service", {f"{HEAD}/enableIngress": True}, "spec.headGroupSpec.enableIngress"),
    (
        "no-privileged-container",
        {f"{HEAD_POD}/containers/0/securityContext/privileged": True},
        "spec.headGroupSpec.template.spec.containers[0].securityContext.privileged",
    ),
    (
        "no-privileged-container",
        {f"{WORKER_POD}/initContainers": [{"name": "tune", "securityContext": {"privileged": True}}]},
        "spec.workerGroupSpecs[0].template.spec.initContainers[0].securityContext.privileged",
    ),
    (
        "no-root",
        {f"{HEAD_POD}/securityContext/runAsUser": 0},
        "spec.headGroupSpec.template.spec.securityContext.runAsUser",
    ),
    (
        "no-root",
        {f"{WORKER_POD}/containers/0/securityContext/runAsUser": 0},
        "spec.workerGroupSpecs[0].template.spec.containers[0].securityContext.runAsUser",
    ),
    (
        "no-root",
        {f"{WORKER_POD}/initContainers": [{"name": "tune", "securityContext": {"runAsNonRoot": False}}]},
        "spec.workerGroupSpecs[0].template.spec.initContainers[0].securityContext.runAsNonRoot",
    ),
    (
        "no-root",
        {"spec/autoscalerOptions/securityContext": {"runAsNonRoot": False}},
        "spec.autoscalerOptions.securityContext.runAsNonRoot",
    ),
    ("no-host-path", {f"{WORKER_POD}/volumes": [HOST]}, "spec.workerGroupSpecs[0].template.spec.volumes[0].hostPath"),
    ("no-host-namespace", {f"{HEAD_POD}/hostNetwork": True}, "spec.headGroupSpec.template.spec.hostNetwork"),
    ("no-host-namespace", {f"{WORKER_POD}/hostPID": True}, "spec.workerGroupSpecs[0].template.spec.hostPID"),
    (
        "fixed-image",
        {f"{WORKER_POD}/containers/0/image": "sp500:latest"},
        "spec.workerGroupSpecs[0].template.spec.containers[0].image",
    ),
    (
        "fixed-image",
        {f"{HEAD_POD}/containers/0/image": "registry.example:5000/sp500"},
        "spec.headGroupSpec.template.spec.containers[0].image",
    ),
    ("fixed-image", {"spec/autoscalerOptions/image": "sp500"}, "spec.autoscalerOptions.image"),
]


@pytest.mark.parametrize(("rule", "changes", "path"), CASES)
def test_cluster_is_refused_with_the_rule_and_the_path(cluster, changed, rule, changes, path):
    violations = rules.violations(changed(cluster, changes))
    assert [(one.rule, one.path, one.ours) for one in violations] == [(rule, path, True)]
    assert str(violations[0]).endswith(f"[{rule}]")


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("no-privileged-container", {f"{SUBMITTER}/containers/0/securityContext/privileged": True}),
        ("no-root", {f"{SUBMITTER}/securityContext/runAsUser": 0}),
        ("no-host-path", {f"{SUBMITTER}/volumes": [HOST]}),
        ("no-host-namespace", {f"{SUBMITTER}/hostNetwork": True}),
        ("fixed-image", {f"{SUBMITTER}/containers/0/image": "sp500"}),
    ],
)
def test_submitter_of_a_job_is_refused_by_the_same_rules(rayjob, changed, rule, changes):
    assert [one.rule for one in rules.violations(changed(rayjob, changes))] == [rule]


@pytest.mark.parametrize(
    "image", ["sp500:2.60.0", "registry.example:5000/lab/sp500:2.60.0-gpu", f"sp500@sha256:{'0' * 64}"]
)
def test_image_with_a_tag_or_a_digest_is_accepted(cluster, changed, image):
    assert rules.violations(changed(cluster, {f"{HEAD_POD}/containers/0/image": image})) == []


def test_cluster_ip_service_is_accepted(cluster, changed):
    assert rules.violations(changed(cluster, {f"{HEAD}/serviceType": "ClusterIP"})) == []


def test_every_rule_is_broken_by_some_case(cluster, changed):
    assert {rule for rule, _, _ in CASES} == {
        one.rule for _, changes, _ in CASES for one in rules.violations(changed(cluster, changes))
    }
    assert len(security_rules.CLUSTER_RULES) + len(security_rules.POD_RULES) == 9
