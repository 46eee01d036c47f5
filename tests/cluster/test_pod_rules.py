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
    ("rule", "path", "value"),
    [
        (pod_rules.unrestricted, "hostNetwork", True),
        (pod_rules.unrestricted, "volumes.0", {"name": "host", "hostPath": {"path": "/"}}),
        (pod_rules.unrestricted, "securityContext.runAsUser", 0),
        (pod_rules.unrestricted, "containers.0.securityContext.privileged", True),
        (pod_rules.unrestricted, "initContainers.0.securityContext.capabilities", {}),
        (pod_rules.unrestricted, "containers.0.securityContext.runAsNonRoot", False),
        (pod_rules.unrestricted, "containers.0.ports", [{"containerPort": 1, "hostPort": 1}]),
        (pod_rules.floating, "containers.0.image", "sp500:latest"),
        (pod_rules.floating, "containers.0.image", "registry:5000/sp500"),
        (pod_rules.unequal_memory, "containers.0.resources", {"limits": {"memory": "1Gi"}}),
        (pod_rules.secret_values, "containers.0.env", [{"name": "RAY_AUTH_TOKEN", "value": "x"}]),
    ],
)
def test_change_that_breaks_a_rule_is_found(rule, path, value):
    assert rule(changed(POD, f"spec.{path}", value))


@pytest.mark.parametrize(
    ("path", "value"), [("verbs", ["get", "*"]), ("verbs", ["escalate"]), ("resources", ["secrets"])]
)
def test_role_that_allows_too_much_is_found(path, value):
    assert pod_rules.wildcards(changed(ROLE, f"rules.0.{path}", value))


def test_token_that_is_mounted_by_default_is_seen():
    assert pod_rules.token_holders(changed(POD, "spec.automountServiceAccountToken", None)) == ["main", "first"]


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
