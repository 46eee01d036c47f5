"""The parts of a Kubernetes cluster that jobs need: the API server, KubeRay, our rights, the claims.

The rights are those of the Role sp500-jobs (cluster/base/rbac.yaml): what it takes to submit a RayJob, to follow it and
to clean up after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sp500.doctor.check import Check, Probe, ok, run_probes, skipped, wrong
from sp500.errors import ConfigError, Refused, ResourcesError, Unreachable, extra
from sp500.formatting import some
from sp500.jobs.cluster import service
from sp500.jobs.cluster.rollout import OPERATOR
from sp500.jobs.kuberay import contexts
from sp500.jobs.manifests import rayservice
from sp500.jobs.manifests.manifest import Document

CLAIMS = ("sp500-runs", "sp500-data")
KINDS = ("rayclusters", "rayjobs")
SERVING = "serving"
NAMES = (
    "kubernetes",
    "kuberay crds",
    "kuberay operator",
    "permissions",
    *(f"claim {name}" for name in CLAIMS),
    SERVING,
)
# The version of KubeRay that the manifests and the rules are written for.
KUBERAY = (1, 7)
# Its Helm chart's label, and that of its own manifests.
OPERATOR_LABELS = "app.kubernetes.io/name in (kuberay-operator, kuberay)"
STRANGER = "the answer is not that of an API server"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


# Resource, API group, name: verbs.
ROLE = {
    ("rayjobs", "ray.io", ""): "create get list watch patch delete",
    ("rayclusters", "ray.io", ""): "get list watch",
    ("configmaps", "", ""): "create get patch delete",
    ("persistentvolumeclaims", "", ""): "get",
    ("pods", "", ""): "get list watch",
    ("pods/log", "", ""): "get list watch",
    ("events", "", ""): "get list watch",
    ("jobs", "batch", ""): "get list watch delete",
    ("services", "", ""): "get list",
    ("pods/portforward", "", ""): "create",
    ("secrets", "", "sp500"): "get",
}


class Cluster:
    """One API server. Each request is sent once, and raises Unreachable, or Refused for what this user may not ask."""

    def __init__(self, source: str, context: str | None) -> None:
        """Read a kubeconfig, or the pod's own account if `source` is empty.

        Raises ConfigError for an unknown context, Unreachable for an invalid kubeconfig.
        """
        with extra("cluster"):
            from sp500.jobs.kuberay.api import KubeApi

        self.context = contexts.select_context({"KUBECONFIG": source}, context)[0] if source else "in this pod"
        self._api = KubeApi(contexts.NAMESPACE, context, source or None)
        self.server = self._api.client.configuration.host

    def version(self) -> str:
        """Return the version of Kubernetes."""
        answer = self.get("/version")
        if "gitVersion" not in answer:
            raise ResourcesError(STRANGER)
        return str(answer["gitVersion"])

    def find_missing_rights(self, namespace: str) -> list[str] | None:
        """Return what jobs need and this user may not do, a text for each resource; None if it is not known.

        A cluster may not list all rights.
        """
        review = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        status = self.get(path, body=review | {"spec": {"namespace": namespace}})["status"]
        missing = []
        for (resource, group, name), verbs in ROLE.items():
            rules = [rule for rule in status["resourceRules"] if _covers(rule, resource, group, name)]
            granted = {verb for rule in rules for verb in rule["verbs"]}
            if lacking := [verb for verb in verbs.split() if not {verb, "*"} & granted]:
                missing.append(" ".join(filter(None, [*lacking, f"{resource}.{group}".rstrip("."), name])))
        return None if missing and status.get("incomplete") else missing

    def get(self, path: str, query: dict[str, str] | None = None, body: Document | None = None) -> Document:
        """Return the answer, to POST if there is a body; empty for HTTP 404."""
        answer = self._api.send_once("POST" if body else "GET", path, query or {}, body)
        if answer.code == 404:
            return {}
        if not answer.code:
            raise Unreachable(answer.message)
        message = f"HTTP {answer.code}: {answer.message}"
        if answer.code in {401, 403}:
            raise Refused(message)
        return answer.document_or(ResourcesError(STRANGER if answer.code < 300 else message))


def probe(
    environment: Mapping[str, str], home: Path, context: str | None, namespace: str, *, wanted: bool | None
) -> Probe:
    """Return the check. `wanted`: True if a cluster is asked for, False if none is, None if one may be set."""
    return NAMES[0], lambda: cluster(environment, home, context, namespace, wanted=wanted)


def cluster(
    environment: Mapping[str, str], home: Path, context: str | None, namespace: str, *, wanted: bool | None
) -> list[Check]:
    """Check the cluster that `environment` configures."""
    if wanted is False:
        return [skipped(name, "jobs run elsewhere (--on)") for name in NAMES]
    source = find_kubeconfig(environment, home)
    if source is None:
        found = "no kubeconfig (KUBECONFIG, ~/.kube/config), and this is not a pod with a service account"
        if not wanted:
            return [skipped(NAMES[0], found), *_skip_rest("no kubeconfig")]
        return [
            wrong(NAMES[0], found, "get one from the cluster's administrator, or run scripts/kind-up"),
            *_skip_rest(),
        ]
    try:
        reached = Cluster(source, context)
    except (ConfigError, Unreachable) as error:
        return [wrong(NAMES[0], _line(error), "repair it, or name another with KUBECONFIG or --context"), *_skip_rest()]
    place = f"context {reached.context}, {reached.server}"
    try:
        version = reached.version()
    except ResourcesError as error:
        way_out = "log in again" if isinstance(error, Refused) else "start the cluster, or choose another --context"
        return [wrong(NAMES[0], f"{place}: no version reported ({_line(error)})", way_out), *_skip_rest()]
    return [ok(NAMES[0], f"{place}, Kubernetes {version}"), *_parts(reached, namespace)]


def find_kubeconfig(environment: Mapping[str, str], home: Path) -> str | None:
    """Return the path of a kubeconfig, empty in a pod with an account, None if no cluster is configured."""
    usual = home / ".kube" / "config"
    if named := environment.get("KUBECONFIG") or (str(usual) if usual.exists() else ""):
        return named
    return "" if "KUBERNETES_SERVICE_HOST" in environment and ACCOUNT.exists() else None


def kinds(served: set[str]) -> Check:
    """Compare the resources that ray.io/v1 serves with those that jobs are made of."""
    missing = [f"{kind}.ray.io" for kind in KINDS if kind not in served]
    if missing:
        return wrong(NAMES[1], f"{' and '.join(missing)} not served as v1", f"install KubeRay: {OPERATOR}")
    return ok(NAMES[1], f"{' and '.join(KINDS)} served as ray.io/v1")


def operator(deployments: list[Document], *, served: bool) -> Check:
    """Check KubeRay's version and whether it runs.

    `served`: its resources exist, so another's operator may be hidden.
    """
    name = NAMES[2]
    operators = [deployment for deployment in deployments if "operator" in deployment["metadata"]["name"]]
    if not operators:
        if served:
            return skipped(name, "none to be seen, but its resources are served: the provider may run it elsewhere")
        return wrong(name, "there is none", f"install it: {OPERATOR}")
    deployment = operators[0]
    namespace = deployment["metadata"]["namespace"]
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    found = f"{image} in namespace {namespace}"
    if not deployment.get("status", {}).get("readyReplicas"):
        where = f"--namespace {namespace} describe deployment {deployment['metadata']['name']}"
        return wrong(name, f"{found} is not ready, so no job starts", f"kubectl {where}")
    tag = re.search(r":v?(\d+)\.(\d+)[^:/]*$", image.partition("@")[0])
    written_for = ".".join(map(str, KUBERAY))
    if tag is None:
        return ok(name, f"{found}; its version is not in the tag, the manifests are written for {written_for}")
    version = (int(tag[1]), int(tag[2]))
    if version < KUBERAY:
        older = f"{found} is older than {written_for}, which the manifests are written for"
        return wrong(name, older, f"upgrade it: {OPERATOR}")
    newer = f", newer than {written_for}, which the manifests are written for" if version > KUBERAY else ""
    return ok(name, found + newer)


def _covers(rule: Document, resource: str, group: str, name: str) -> bool:
    names = rule.get("resourceNames")
    is_kind = {resource, "*"} & {*rule["resources"]} and {group, "*"} & {*rule["apiGroups"]}
    return bool(is_kind) and (not names or name in names)


def permissions(missing: list[str] | None, namespace: str) -> Check:
    """Check the rights that jobs need for those that this user lacks. `missing`: None if they are not known."""
    name = NAMES[3]
    if missing is None:
        return skipped(name, f"the cluster does not list all rights; see kubectl --namespace {namespace} auth can-i")
    if not missing:
        return ok(name, f"all that jobs need in namespace {namespace}")
    advice = (
        "an administrator of the namespace must bind the Role of cluster/base/rbac.yaml to this user:"
        f" kubectl --namespace {namespace} create rolebinding NAME --role=sp500-jobs --user=USER"
    )
    return wrong(name, f"not permitted in namespace {namespace}: {'; '.join(missing)}", advice)


def claim(name: str, document: Document, namespace: str) -> Check:
    """Check a claim's state and mode; `document` is empty if there is none."""
    title = f"claim {name}"
    if not document:
        return wrong(title, f"namespace {namespace} has none", "scripts/deploy OVERLAY makes it, or kubectl apply")
    phase = document.get("status", {}).get("phase", "Pending")
    modes = ", ".join(document["spec"]["accessModes"])
    if phase != "Bound":
        advice = f"kubectl --namespace {namespace} describe pvc {name} says why; some bind with their first pod only"
        return wrong(title, f"{phase}, {modes}", advice)
    size = document["status"].get("capacity", {}).get("storage", "unknown size")
    alone = ": for pods of one node" if modes == "ReadWriteOnce" else ""
    return ok(title, f"Bound, {size}, {modes}{alone}")


def serving(document: Document, namespace: str) -> Check:
    """Check whether the RayService answers; `document` is empty if there is none."""
    if not document:
        return skipped(SERVING, f"namespace {namespace} has no RayService {rayservice.NAME}")
    endpoints = document.get("status", {}).get("numServeEndpoints") or 0
    taking = f"{some(endpoints, 'pod')} take{'s' if endpoints == 1 else ''} requests"
    if service.answers(document):
        return ok(SERVING, f"RayService {rayservice.NAME}: {taking}")
    state = "; ".join([taking, *service.complaints(document)])
    pods = f"pods --selector {next('='.join(label) for label in rayservice.COMPONENT.items())}"
    advice = f"kubectl --namespace {namespace} describe rayservice {rayservice.NAME}, and describe {pods}"
    return wrong(SERVING, f"RayService {rayservice.NAME} is not as its spec: {state}", advice)


def _parts(reached: Cluster, namespace: str) -> list[Check]:
    """Return the checks of all that jobs need in a cluster that answers."""
    served: set[str] = set()
    of_core, of_ray = (f"/{root}/namespaces/{quote(namespace)}" for root in ("api/v1", "apis/ray.io/v1"))

    def crds() -> list[Check]:
        served.update(resource["name"] for resource in reached.get("/apis/ray.io/v1").get("resources", []))
        return [kinds(served)]

    def deployment() -> list[Check]:
        listed = reached.get("/apis/apps/v1/deployments", {"labelSelector": OPERATOR_LABELS})
        return [operator(listed["items"], served=bool(served))]

    def rights() -> list[Check]:
        return [permissions(reached.find_missing_rights(namespace), namespace)]

    def claim_of(name: str) -> list[Check]:
        return [claim(name, reached.get(f"{of_core}/persistentvolumeclaims/{name}"), namespace)]

    def server() -> list[Check]:
        return [serving(reached.get(f"{of_ray}/rayservices/{rayservice.NAME}"), namespace)]

    asks: tuple[Callable[[], Sequence[Check]], ...]
    asks = (crds, deployment, rights, *(partial(claim_of, name) for name in CLAIMS), server)
    return run_probes((name, _skip_refused(name, ask)) for name, ask in zip(NAMES[1:], asks, strict=True))


def _skip_refused(name: str, ask: Callable[[], Sequence[Check]]) -> Callable[[], Sequence[Check]]:
    """Wrap `ask` so that a missing permission is acceptable: jobs do without it."""

    def ask_or_skip() -> Sequence[Check]:
        try:
            return ask()
        except Refused as error:
            return [skipped(name, f"this user may not look ({_line(error)})")]

    return ask_or_skip


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _skip_rest(why: str = "no Kubernetes cluster answers") -> list[Check]:
    return [skipped(name, why) for name in NAMES[1:]]
