"""Rules for manifests: one change breaks one rule, at the path that is named."""

import re

import pytest

from sp500.errors import ConfigError
from sp500.jobs.manifests import rules

HEAD, WORKER = "spec/headGroupSpec", "spec/workerGroupSpecs/0"
HEAD_POD, WORKER_POD = f"{HEAD}/template/spec", f"{WORKER}/template/spec"
HEAD_RAY, WORKER_RAY = f"{HEAD_POD}/containers/0", f"{WORKER_POD}/containers/0"
STORE = f"{WORKER}/rayStartParams/object-store-memory"
SUBMITTER = "spec/submitterPodTemplate/spec"
JOB_STORE = STORE.replace("spec/", "spec/rayClusterSpec/", 1)
HOST = {"name": "host", "hostPath": {"path": "/var/run"}}
INIT = f"{WORKER_POD}/initContainers/0/securityContext"
# The manifest, the rule, what is changed, and the path of the violation (default: that of the change).
BROKEN = [
    ("cluster", "", {"metadata/name": "a" * 54}, ""),
    ("cluster", "", {"metadata/name": "Sp500"}, ""),
    ("cluster", "", {"metadata/name": ...}, ""),
    ("rayjob", "", {"metadata/name": "a" * 48}, ""),
    ("rayservice", "", {"metadata/name": "a" * 48}, ""),
    ("cluster", "", {f"{HEAD_POD}/containers": []}, ""),
    ("cluster", "", {WORKER_POD: {}}, f"{WORKER_POD}/containers"),
    ("rayservice", "", {"spec/rayClusterConfig/workerGroupSpecs": [{}]},
     f"spec/rayClusterConfig/{WORKER_POD.removeprefix('spec/')}/containers"),
    ("cluster", "", {f"{HEAD_POD}/containers/1": {"name": "ray-head"}, f"{HEAD_RAY}/name": "logs"},
     f"{HEAD_POD}/containers/1"),
    ("cluster", "", {f"{HEAD_RAY}/ports/1/name": "web"}, f"{HEAD_RAY}/ports"),
    ("cluster", "", {f"{WORKER_RAY}/resources/requests/memory": "2Gi"}, ""),
    ("cluster", "", {f"{HEAD_RAY}/resources/limits/memory": ...}, ""),
    ("cluster", "", {STORE: str(3 * 2**30)}, ""),
    ("rayjob", "", {JOB_STORE: str(3 * 2**40)}, ""),
    ("cluster", "", {"spec/autoscalerOptions/version": ...}, ""),
    ("cluster", "", {"spec/rayVersion": "nightly"}, ""),
    ("rayjob", "", {"spec/submitterPodTemplate": ...}, ""),
    ("rayjob", "", {f"{SUBMITTER}/containers/0/name": "submit"}, ""),
    ("cluster", "token-authentication", {"spec/authOptions": ...}, "spec/authOptions/mode"),
    ("cluster", "token-authentication", {"spec/authOptions": {}}, "spec/authOptions/mode"),
    ("cluster", "token-authentication", {"spec/authOptions/mode": "disabled"}, ""),
    ("cluster", "private-service", {f"{HEAD}/serviceType": "LoadBalancer"}, ""),
    ("cluster", "private-service", {f"{HEAD}/serviceType": "NodePort"}, ""),
    ("cluster", "private-service", {f"{HEAD}/headService/spec/type": "LoadBalancer"}, ""),
    ("cluster", "private-service", {f"{HEAD}/enableIngress": True}, ""),
    ("cluster", "no-privileged-container", {f"{HEAD_RAY}/securityContext/privileged": True}, ""),
    ("cluster", "no-privileged-container",
     {f"{WORKER_POD}/initContainers": [{"securityContext": {"privileged": True}}]}, f"{INIT}/privileged"),
    ("cluster", "no-root", {f"{HEAD_POD}/securityContext/runAsUser": 0}, ""),
    ("cluster", "no-root", {f"{WORKER_RAY}/securityContext/runAsUser": 0}, ""),
    ("cluster", "no-root", {"spec/autoscalerOptions/securityContext/runAsNonRoot": False}, ""),
    ("rayjob", "no-root", {f"{SUBMITTER}/securityContext/runAsUser": 0}, ""),
    ("cluster", "no-host-path", {f"{WORKER_POD}/volumes": [HOST]}, f"{WORKER_POD}/volumes/0/hostPath"),
    ("cluster", "no-host-namespace", {f"{HEAD_POD}/hostNetwork": True}, ""),
    ("cluster", "no-host-namespace", {f"{WORKER_POD}/hostPID": True}, ""),
    ("rayjob", "no-host-namespace", {f"{SUBMITTER}/hostIPC": True}, ""),
    ("cluster", "fixed-image", {f"{WORKER_RAY}/image": "sp500:latest"}, ""),
    ("cluster", "fixed-image", {f"{HEAD_RAY}/image": "registry.example:5000/sp500"}, ""),
    ("cluster", "fixed-image", {"spec/autoscalerOptions/image": "sp500"}, ""),
    ("rayjob", "fixed-image", {f"{SUBMITTER}/containers/0/image": "sp500"}, ""),
]  # fmt: skip
GOOD = [
    *(("cluster", {}), ("rayservice", {}), ("rayjob", {})),
    ("cluster", {"metadata/name": "a" * 53}),
    ("cluster", {"metadata/name": ..., "metadata/generateName": "sp500-"}),
    ("rayjob", {"metadata/name": "a" * 47}),
    ("cluster", {f"{HEAD_RAY}/ports": ...}),
    ("cluster", {f"{WORKER_RAY}/resources/requests/memory": "3072Mi"}),
    ("cluster", {f"{WORKER_RAY}/resources/requests": ...}),
    ("cluster", {f"{WORKER_POD}/containers/1": {"name": "logs"}}),
    ("cluster", {f"{HEAD}/serviceType": "ClusterIP"}),
    ("cluster", {f"{HEAD_RAY}/image": "registry.example:5000/lab/sp500:2.60.0-gpu"}),
    ("cluster", {f"{HEAD_RAY}/image": f"sp500@sha256:{'0' * 64}"}),
]


@pytest.fixture
def violations(request, changed):
    """The violations of the manifest of a fixture, changed."""
    return lambda manifest, changes: rules.violations(changed(request.getfixturevalue(manifest), changes))


@pytest.mark.parametrize(("manifest", "rule", "changes", "path"), BROKEN)
def test_one_change_breaks_one_rule_at_its_path(violations, manifest, rule, changes, path):
    wanted = re.sub(r"\.(\d+)", r"[\1]", (path or next(iter(changes))).replace("/", "."))
    assert [(one.rule, one.path) for one in violations(manifest, changes)] == [(rule, wanted)]


@pytest.mark.parametrize(("manifest", "changes"), GOOD)
def test_manifest_that_works_breaks_no_rule(violations, manifest, changes):
    assert violations(manifest, changes) == []


def test_check_lists_every_violation_with_kind_name_and_rule(rayjob, changed):
    with pytest.raises(ConfigError) as caught:
        rules.check(changed(rayjob, {"metadata/name": "1st", f"{SUBMITTER}/hostPID": True}))
    first, second = str(caught.value).splitlines()
    assert first.startswith("RayJob 1st: metadata.name '1st'")
    assert second.endswith("[no-host-namespace]")


@pytest.mark.parametrize("kind", ["ConfigMap", "RayCronJob"])
def test_other_kinds_have_no_rules(kind):
    rules.check({"kind": kind, "metadata": {"name": "Anything"}})


def test_document_of_a_wrong_shape_is_refused_and_not_stumbled_over(cluster):
    for spec in (None, [], {"headGroupSpec": []}, {"headGroupSpec": {"template": {"spec": {"containers": "ray"}}}}):
        broken = rules.violations(cluster | {"spec": spec, "metadata": {"name": "sp500", "labels": []}})
        assert "spec.headGroupSpec.template.spec.containers" in {one.path for one in broken}
