from itertools import product
from pathlib import Path

import pytest
import yaml

from sp500.doctor import kubernetes_cluster
from sp500.doctor.kubernetes_cluster import NAMES, ROLE

ROOT = Path(__file__).parents[2]


def states(checks):
    return {name: str(check.state) for name, check in checks.items()}


def wrong(checks):
    return {name for name, state in states(checks).items() if state == "wrong"}


def test_cluster_where_all_is_there_is_well(looked, kubernetes):
    checks = looked()
    assert set(states(checks).values()) == {"ok"}
    assert checks["kubernetes"].found == f"context test, {kubernetes.url}, Kubernetes v1.36.0"
    assert checks["claim sp500-runs"].found == "Bound, 5Gi, ReadWriteMany"
    assert checks["claim sp500-data"].found == "Bound, 5Gi, ReadWriteOnce: for pods of one node"
    assert checks["serving"].found == "RayService sp500-serve: 2 pods take requests"


def test_server_that_does_not_answer_is_told_with_what_ray_says(looked, kubernetes):
    application = {"status": "DEPLOY_FAILED", "message": "Traceback\nValueError: no such run\n"}
    kubernetes.service["status"] |= {
        "numServeEndpoints": 0,
        "pendingServiceStatus": {"applicationStatuses": {"sp500": application}},
    }
    check = looked()["serving"]
    assert check.state == "wrong"
    assert check.found.endswith("application sp500: DEPLOY_FAILED: ValueError: no such run")


def test_rights_are_those_of_the_role():
    documents = yaml.safe_load_all((ROOT / "cluster/base/rbac.yaml").read_text())
    [rules] = [document["rules"] for document in documents if document["kind"] == "Role"]
    granted = [
        (*where, " ".join(rule["verbs"]))
        for rule in rules
        for where in product(rule["resources"], rule["apiGroups"], rule.get("resourceNames", [""]))
    ]
    assert sorted((*where, verbs) for where, verbs in ROLE.items()) == sorted(granted)


def test_right_that_is_missing_is_named(looked, kubernetes):
    kubernetes.denied = {(verb, "rayjobs", "ray.io", "") for verb in ("create", "delete")}
    kubernetes.denied |= {("get", "pods/log", "", ""), ("get", "secrets", "", "sp500")}
    check = looked()["permissions"]
    assert check.state == "wrong"
    assert check.found.endswith(": create delete rayjobs.ray.io; get pods/log; get secrets sp500")
    kubernetes.incomplete = True  # as with an authorizer that cannot list its rules
    assert looked()["permissions"].state == "skipped"


def test_rule_for_everything_grants_every_right(looked, kubernetes):
    kubernetes.rules = lambda: [{"verbs": ["*"], "resources": ["*"], "apiGroups": ["*"]}]
    assert looked()["permissions"].state == "ok"


@pytest.mark.parametrize(
    ("image", "ready", "state", "told"),
    [
        ("quay.io/kuberay/operator:v1.7.2", 1, "ok", "v1.7.2"),
        ("registry:5000/operator:v1.8.0@sha256:0a1b", 1, "ok", "newer than 1.7"),
        ("quay.io/kuberay/operator:v1.4.2", 1, "wrong", "older than 1.7"),
        ("registry:5000/operator@sha256:0a1b", 1, "ok", "not in the tag"),
        ("registry:5000/operator:nightly", 1, "ok", "not in the tag"),
        ("quay.io/kuberay/operator:v1.7.0", 0, "wrong", "not ready"),
        ("", 0, "skipped", "elsewhere"),
    ],
)
def test_operator_is_held_to_the_version_of_the_manifests(looked, kubernetes, image, ready, state, told):
    kubernetes.image, kubernetes.ready = image, ready
    check = looked()["kuberay operator"]
    assert (check.state, told in check.found) == (state, True)


def test_cluster_without_kuberay_is_told_how_to_install_it(looked, kubernetes):
    kubernetes.kinds, kubernetes.image = [], ""
    checks = looked()
    assert wrong(checks) == {"kuberay crds", "kuberay operator"}
    assert "rayclusters.ray.io and rayjobs.ray.io" in checks["kuberay crds"].found
    assert "helm upgrade" in checks["kuberay operator"].advice


@pytest.mark.parametrize(
    ("claims", "told"),
    [({}, "namespace sp500 has none"), ({"sp500-runs": ("Pending", "ReadWriteMany")}, "Pending, ReadWriteMany")],
)
def test_claim_that_is_missing_or_not_bound_is_wrong(looked, kubernetes, claims, told):
    kubernetes.claims = claims
    check = looked()["claim sp500-runs"]
    assert (check.state, told in check.found) == ("wrong", True)


def test_what_the_user_may_not_look_at_is_skipped_and_hides_nothing(looked, kubernetes):
    kubernetes.forbidden = {"deployments", "persistentvolumeclaims", "rayservices"}
    checks = looked()
    assert wrong(checks) == set()
    assert [name for name, state in states(checks).items() if state == "skipped"] == [NAMES[2], *NAMES[4:]]
    assert "forbidden" in checks["kuberay operator"].found


def test_user_without_a_name_or_unknown_is_told_to_log_in(looked, kubernetes):
    kubernetes.forbidden = {"v1", "deployments", "selfsubjectrulesreviews", "persistentvolumeclaims"}
    checks = looked()
    assert wrong(checks) == set()
    assert (checks["kubernetes"].state, checks["permissions"].state) == ("ok", "skipped")
    kubernetes.user = False
    checks = looked()
    assert wrong(checks) == {"kubernetes"}
    assert "HTTP 401: Unauthorized" in checks["kubernetes"].found
    assert checks["kubernetes"].advice == "log in again"


def test_server_that_does_not_answer_is_wrong(looked, nowhere):
    checks = looked(server=nowhere)
    assert wrong(checks) == {"kubernetes"}
    assert (nowhere in checks["kubernetes"].found, "refused" in checks["kubernetes"].found) == (True, True)


@pytest.mark.parametrize("answer", [(200, "<html>"), (200, {}), (404, "no"), (500, "broken")])
def test_server_of_another_kind_is_wrong(looked, serve, answer):
    assert wrong(looked(server=serve(lambda *_: answer).url)) == {"kubernetes"}


def test_context_that_the_kubeconfig_lacks_is_wrong_and_the_others_are_named(looked):
    checks = looked(context="prod")
    assert wrong(checks) == {"kubernetes"}
    assert "there are: test" in checks["kubernetes"].found


@pytest.mark.parametrize("text", [None, "", "a: [", "clusters: []\n", "just words"])
def test_kubeconfig_that_is_none_is_wrong(tmp_path, text):
    if text is not None:
        (tmp_path / "config").write_text(text)
    environment = {"KUBECONFIG": str(tmp_path / "config")}
    first, *others = kubernetes_cluster.cluster(environment, tmp_path, None, "sp500", wanted=None)
    assert (first.state, str(tmp_path) in first.found) == ("wrong", True)
    assert {str(check.state) for check in others} == {"skipped"}


@pytest.mark.parametrize(("wanted", "first"), [(None, "skipped"), (False, "skipped"), (True, "wrong")])
def test_no_kubeconfig_is_wrong_only_where_a_cluster_is_asked_for(tmp_path, wanted, first):
    checks = kubernetes_cluster.cluster({}, tmp_path, None, "sp500", wanted=wanted)
    assert [str(check.state) for check in checks] == [first] + ["skipped"] * 6
