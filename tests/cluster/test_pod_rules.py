"""Each rule can fail: a pod that keeps all of them, and one change that breaks one."""

import copy

import pod_rules
import pytest

CLOSED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(name, image, request, limit):
    return {
        "name": name,
        "image": image,
        "resources": {"requests": request, "limits": limit},
        "securityContext": CLOSED,
    }


MAIN = container("main", "registry:5000/sp500:2.60.0", {"cpu": "250m", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})
FIRST = container("first", f"sp500@sha256:{'0' * 64}", {"cpu": 2, "memory": "64Mi"}, {"cpu": 2, "memory": "64Mi"})
POD = {
    "metadata": {"name": "good"},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [MAIN],
        "initContainers": [FIRST],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}
ROLE = {"rules": [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]}]}


def changed(document, path, value):
    """A copy with one value replaced; numbers in the path are places in a list."""
    result = copy.deepcopy(document)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = result
    for step in way:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[last] = value
    return result


def test_good_pod_breaks_no_rule():
    rules = (pod_rules.unrestricted, pod_rules.floating, pod_rules.unequal_memory, pod_rules.token_holders)
    assert [rule(POD) for rule in rules] == [[], [], [], []]
    assert pod_rules.secret_values(POD) == []
    assert pod_rules.wildcards(ROLE) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("hostNetwork", True, "hostNetwork is set"),
        ("hostPID", True, "hostPID is set"),
        ("hostIPC", True, "hostIPC is set"),
        ("volumes.0", {"name": "host", "hostPath": {"path": "/"}}, "volume host is a hostPath"),
        ("securityContext.sysctls", [{"name": "a", "value": "1"}], "pod: sysctls are set"),
        ("securityContext.runAsUser", 0, "pod: runAsUser is 0"),
        ("containers.0.securityContext.privileged", True, "main: privileged"),
        ("initContainers.0.securityContext", {}, "first: allowPrivilegeEscalation is not false"),
        ("containers.0.securityContext.capabilities", {}, "main: capabilities not dropped: ALL"),
        ("containers.0.securityContext.capabilities.add", ["SYS_PTRACE"], "main: capabilities added: ['SYS_PTRACE']"),
        ("containers.0.securityContext.runAsNonRoot", False, "main: runAsNonRoot is not true"),
        ("containers.0.securityContext.runAsUser", 0, "main: runAsUser is 0"),
        ("containers.0.securityContext.seccompProfile", {"type": "Unconfined"}, "main: seccompProfile is Unconfined"),
        ("containers.0.securityContext.procMount", "Unmasked", "main: procMount is Unmasked"),
        ("containers.0.ports", [{"containerPort": 1, "hostPort": 1}], "main: a hostPort"),
    ],
)
def test_pod_that_is_not_restricted_is_named(path, value, said):
    assert said in pod_rules.unrestricted(changed(POD, f"spec.{path}", value))


def test_pod_without_any_security_context_breaks_the_rules_in_every_container():
    bare = {"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]}}
    for name in ("a", "b"):
        assert [fault for fault in pod_rules.unrestricted(bare) if fault.startswith(f"{name}: ")] == [
            f"{name}: allowPrivilegeEscalation is not false",
            f"{name}: capabilities not dropped: ALL",
            f"{name}: runAsNonRoot is not true",
            f"{name}: no seccompProfile",
        ]


@pytest.mark.parametrize("image", ["sp500", "sp500:latest", "registry:5000/sp500", "sp500@sha256:00"])
def test_image_without_a_fixed_tag_is_named(image):
    [fault] = pod_rules.floating(changed(POD, "spec.containers.0.image", image))
    assert image in fault


@pytest.mark.parametrize(
    "resources", [{}, {"limits": {"memory": "1Gi"}}, {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}]
)
def test_memory_that_is_asked_for_otherwise_than_limited_is_named(resources):
    [fault] = pod_rules.unequal_memory(changed(POD, "spec.containers.0.resources", resources))
    assert fault.startswith("main: memory request ")


def test_token_is_seen_where_it_is_mounted_by_default_and_where_by_hand():
    assert pod_rules.token_holders(changed(POD, "spec.automountServiceAccountToken", None)) == ["main", "first"]
    volume = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    mounted = changed(changed(POD, "spec.volumes.0", volume), "spec.initContainers.0.volumeMounts", [{"name": "token"}])
    assert pod_rules.token_holders(mounted) == ["first"]


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "Secret", "data": {"key": "eA=="}},
        {"kind": "Secret", "stringData": {"key": "x"}},
        changed(POD, "spec.containers.0.env", [{"name": "RAY_AUTH_TOKEN", "value": "x"}]),
        changed(POD, "spec.containers.0.env", [{"name": "aws_secret_access_key", "value": "x"}]),
    ],
)
def test_secret_written_out_is_named(document):
    assert len(pod_rules.secret_values(document)) == 1


def test_secret_by_reference_is_no_fault():
    by_reference = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]
    assert pod_rules.secret_values(changed(POD, "spec.containers.0.env", by_reference)) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("apiGroups", ["*"], "apiGroups *"),
        ("resources", ["*"], "resources *"),
        ("verbs", ["get", "*"], "verbs *"),
        ("verbs", ["escalate"], "hands out rights"),
        ("resources", ["secrets"], "secrets beyond get by name"),
        ("resources", ["pods/exec"], "makes or enters pods"),
    ],
)
def test_role_that_allows_too_much_is_named(path, value, said):
    assert f"rule 0: {said}" in pod_rules.wildcards(changed(ROLE, f"rules.0.{path}", value))


def test_quantities_are_read_as_kubernetes_reads_them():
    amounts = [pod_rules.amount(one) for one in ("500m", "2", 2, "1.5Gi", "64Mi", "1k")]
    assert amounts == [0.5, 2, 2, 1.5 * 2**30, 64 * 2**20, 1000]
    with pytest.raises(AssertionError, match="no quantity: 3 GB"):
        pod_rules.amount("3 GB")


def test_demand_counts_the_containers_together_or_the_larger_init_container():
    assert pod_rules.demand([(POD, 3)]) == {
        "pods": 3,
        "requests.cpu": 6,  # the init container's 2
        "limits.cpu": 6,
        "requests.memory": 3 * 2**30,
        "limits.memory": 3 * 2**30,
    }
