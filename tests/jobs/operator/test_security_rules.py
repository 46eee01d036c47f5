"""Manifests that would open the cluster or its nodes are refused, each by the id of its rule."""

import re

import pytest

from sp500.jobs.operator import rules, security_rules

HEAD = "spec/headGroupSpec"
HEAD_POD = f"{HEAD}/template/spec"
WORKER_POD = "spec/workerGroupSpecs/0/template/spec"
SUBMITTER = "spec/submitterPodTemplate/spec"
HOST = {"name": "host", "hostPath": {"path": "/var/run"}}
PRIVILEGED = {"name": "tune", "securityContext": {"privileged": True}}
ROOT = {"name": "tune", "securityContext": {"runAsNonRoot": False}}
INIT = f"{WORKER_POD}/initContainers/0/securityContext"
RAY = f"{HEAD_POD}/containers/0"
# The rule, where the cluster is changed, to what, and where that is told (default: there).
CASES = [
    ("token-authentication", "spec/authOptions", ..., "spec/authOptions/mode"),
    ("token-authentication", "spec/authOptions", {}, "spec/authOptions/mode"),
    ("token-authentication", "spec/authOptions/mode", "disabled", ""),
    ("private-service", f"{HEAD}/serviceType", "LoadBalancer", ""),
    ("private-service", f"{HEAD}/serviceType", "NodePort", ""),
    ("private-service", f"{HEAD}/headService/spec/type", "LoadBalancer", ""),
    ("private-service", f"{HEAD}/enableIngress", True, ""),
    ("no-privileged-container", f"{RAY}/securityContext/privileged", True, ""),
    ("no-privileged-container", f"{WORKER_POD}/initContainers", [PRIVILEGED], f"{INIT}/privileged"),
    ("no-root", f"{HEAD_POD}/securityContext/runAsUser", 0, ""),
    ("no-root", f"{WORKER_POD}/containers/0/securityContext/runAsUser", 0, ""),
    ("no-root", f"{WORKER_POD}/initContainers", [ROOT], f"{INIT}/runAsNonRoot"),
    ("no-root", "spec/autoscalerOptions/securityContext/runAsNonRoot", False, ""),
    ("no-host-path", f"{WORKER_POD}/volumes", [HOST], f"{WORKER_POD}/volumes/0/hostPath"),
    ("no-host-namespace", f"{HEAD_POD}/hostNetwork", True, ""),
    ("no-host-namespace", f"{WORKER_POD}/hostPID", True, ""),
    ("fixed-image", f"{WORKER_POD}/containers/0/image", "sp500:latest", ""),
    ("fixed-image", f"{RAY}/image", "registry.example:5000/sp500", ""),
    ("fixed-image", "spec/autoscalerOptions/image", "sp500", ""),
]


@pytest.mark.parametrize(("rule", "place", "value", "told"), CASES)
def test_cluster_is_refused_with_the_rule_and_the_path(cluster, changed, rule, place, value, told):
    violations = rules.violations(changed(cluster, {place: value}))
    path = re.sub(r"\.(\d+)", r"[\1]", (told or place).replace("/", "."))
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


def test_every_rule_has_a_case():
    assert len({rule for rule, *_ in CASES}) == 7
    assert len(security_rules.CLUSTER_RULES) + len(security_rules.POD_RULES) == 9
