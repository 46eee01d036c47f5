"""Deploy a kustomize overlay to an existing cluster, and wait until Ray is ready.

A deploy that would be refused half-way changes nothing: the API server first judges all manifests in a dry run.
Deploying the same overlay again is safe, because readiness is read from the pods. The RayCluster's observedGeneration
is of no use for that: KubeRay 1.7 writes its status only if another field of it differs (its utils/consistency.go), so
it stays behind after a change that ends in the same status.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from sp500.errors import ConfigError, ResourcesError, Unreachable
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.manifests import manifest
from sp500.jobs.manifests.manifest import Document, section

OPERATOR = (
    "helm upgrade --install kuberay-operator kuberay-operator --version 1.7.0"
    " --repo https://ray-project.github.io/kuberay-helm --namespace ray-system --create-namespace"
)
# The operator keeps a hash of the spec on the head's pod, and replaces all pods when the spec's hash is another.
HASH = "ray.io/upgrade-strategy-recreate-hash"
REASON = re.compile(r"error when [a-z]+ .STDIN.: |no matches for kind|Error from server \((?!Invalid)")
IMMUTABLE_CLAIMS = (
    "The class and the access modes of an existing claim cannot be changed. Deploy into another namespace, or fetch the"
    " runs, delete the claims (which deletes what they hold) and deploy again."
)


@dataclass(frozen=True)
class Overlay:
    """An overlay as kustomize renders it."""

    text: str
    documents: tuple[Document, ...]
    """The manifests in `text`."""
    name: str
    """Name of its RayCluster."""
    namespace: str

    @property
    def claims(self) -> list[str]:
        """Names of its volume claims."""
        return [
            document["metadata"]["name"] for document in self.documents if document["kind"] == "PersistentVolumeClaim"
        ]


@dataclass(frozen=True)
class Rollout:
    """An overlay that was applied. `replaced_head` is the head that the operator is going to replace, if any."""

    overlay: Overlay
    spec: Document
    """Spec of the RayCluster as the API server has it."""
    replaced_head: tuple[str, str] | None


def parse(text: str, where: str) -> Overlay:
    """Return the overlay that kustomize printed. Raises ConfigError unless it has one RayCluster, in a namespace."""
    documents: list[Document] = [document for document in yaml.safe_load_all(text) if document]
    clusters: list[Document] = [document["metadata"] for document in documents if document["kind"] == "RayCluster"]
    if len(clusters) != 1 or "namespace" not in clusters[0]:
        raise ConfigError(f"{where}: expected one RayCluster with a namespace, found {clusters}")
    return Overlay(text, tuple(documents), clusters[0]["name"], clusters[0]["namespace"])


def apply(kubectl: Kubectl, overlay: Overlay, say: Callable[[str], None]) -> Rollout:
    """Apply all manifests, or none of them if the API server refuses one.

    A dry run needs the namespace, so that is created first. Raises ResourcesError without an operator, or with the
    API server's reasons.
    """
    if "rayclusters.ray.io" not in kubectl.text("api-resources", "--api-group=ray.io", "--output=name").split():
        raise ResourcesError(f"this cluster has no KubeRay operator; its administrator installs it with\n  {OPERATOR}")
    before = kubectl.document("get", "raycluster", overlay.name)
    pods = _pods(kubectl, overlay.name)
    namespaces = [document for document in overlay.documents if document["kind"] == "Namespace"]
    if namespaces and not kubectl.document("get", "namespace", overlay.namespace):
        say(_apply(kubectl, manifest.text(namespaces)))
    try:
        answer = json.loads(_apply(kubectl, overlay.text, "--dry-run=server", "--output=json"))
    except ResourcesError as error:
        claim = "PersistentVolumeClaim" in str(error) and "immutable" in str(error)
        hint = f"\n{IMMUTABLE_CLAIMS}" if claim else ""
        why = _without_patches(str(error))
        raise ResourcesError(f"the cluster refuses this overlay, and nothing of it was applied:\n{why}{hint}") from None
    [spec] = [document["spec"] for document in answer.get("items", [answer]) if document["kind"] == "RayCluster"]
    say(_apply(kubectl, overlay.text))
    return Rollout(overlay, spec, _head(pods) if before and _replaces_pods(before["spec"], spec) else None)


def ready(rollout: Rollout, pods: Sequence[Document]) -> bool:
    """Return whether the head of the applied manifests and the smallest number of workers are ready."""
    if _head(pods) in {None, rollout.replaced_head}:
        return False
    counts = Counter(_type(pod) for pod in _alive(pods) if reasons.ready(pod))
    groups = rollout.spec.get("workerGroupSpecs", [])
    fewest = sum(group.get("minReplicas", 0) * group.get("numOfHosts", 1) for group in groups)
    return counts["head"] > 0 and counts["worker"] >= fewest


def wait(kubectl: Kubectl, rollout: Rollout, *, seconds: float, say: Callable[[str], None]) -> None:
    """Return when the Ray cluster is ready. Raises ResourcesError with the cluster's reasons after `seconds`."""
    overlay = rollout.overlay

    def why() -> list[str]:
        """Return the reasons that the cluster is not ready, one line each."""
        pods, cluster = _pods(kubectl, overlay.name), kubectl.document("get", "raycluster", overlay.name)
        claims = [claim for claim in kubectl.items("get", "pvc") if claim["metadata"]["name"] in overlay.claims]
        lines = _suspension(kubectl, cluster) or reasons.of_conditions(cluster)
        subjects = [cluster, *claims, *(pod for pod in pods if not reasons.ready(pod))]
        lines += reasons.of_pods(pods) + reasons.of_events(kubectl.items("get", "events"), subjects)
        if lines:
            return lines
        if not pods:
            return ["there are no pods yet: does the operator run?"]
        old = rollout.replaced_head and rollout.replaced_head == _head(pods)
        return ["the operator has not replaced the pods yet"] if old else []

    waiting.until(
        lambda: ready(rollout, _pods(kubectl, overlay.name)),
        why,
        what=f"RayCluster {overlay.name}",
        seconds=seconds,
        say=say,
    )


def _suspension(kubectl: Kubectl, cluster: Document) -> list[str]:
    """Return the reasons that Kueue holds the cluster; empty if it does not."""
    if not (reasons.queue(cluster) and section(cluster, "spec").get("suspend")):
        return []
    label = f"--selector=kueue.x-k8s.io/job-uid={cluster['metadata']['uid']}"
    try:
        workloads = kubectl.items("get", "workloads.kueue.x-k8s.io", label)
    except Unreachable:
        raise
    except ResourcesError:  # this account may not list them
        workloads = []
    return [reasons.of_queue(cluster, next(iter(workloads), None))]


def _apply(kubectl: Kubectl, manifests: str, *flags: str) -> str:
    return kubectl.text("apply", "--filename=-", *flags, stdin=manifests).rstrip()


def _without_patches(message: str) -> str:
    """Return the lines with a reason: kubectl prints patch and differences of every refused object as well."""
    lines = [line for line in message.splitlines() if REASON.search(line)]
    return "\n".join(f"  {re.sub('^.*error when [a-z]+ .STDIN.: ', '', line)}" for line in lines) or message


def _pods(kubectl: Kubectl, cluster: str) -> list[Document]:
    return kubectl.items("get", "pods", f"--selector=ray.io/cluster={cluster}")


def _alive(pods: Sequence[Document]) -> list[Document]:
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _type(pod: Document) -> str:
    return str(section(pod["metadata"], "labels").get("ray.io/node-type"))


def _head(pods: Sequence[Document]) -> tuple[str, str] | None:
    """Return the head's uid and hash. An operator that keeps a pod through its own upgrade changes only the hash."""
    metadata = next((pod["metadata"] for pod in _alive(pods) if _type(pod) == "head"), None)
    return (metadata["uid"], str(section(metadata, "annotations").get(HASH))) if metadata else None


def _replaces_pods(before: Document, after: Document) -> bool:
    """Return whether the operator replaces pods for a change, which it does for all but a few fields of the spec."""
    recreates = section(after, "upgradeStrategy").get("type") == "Recreate"
    return recreates and _without_scaling(before) != _without_scaling(after)


def _without_scaling(spec: Document) -> Document:
    """Return a spec without what the operator's GenerateHashWithoutReplicasAndWorkersToDelete leaves out."""
    spec = copy.deepcopy(spec)
    spec.pop("upgradeStrategy", None)
    groups = spec.get("workerGroupSpecs", [])
    for group in groups:
        for name in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(name, None)
        section(group, "scaleStrategy").pop("workersToDelete", None)
        if not group.get("scaleStrategy", True):
            del group["scaleStrategy"]
    for group in (section(spec, "headGroupSpec"), *groups):
        for name in ("tolerations", "schedulingGates"):
            section(section(group, "template"), "spec").pop(name, None)
    return spec
