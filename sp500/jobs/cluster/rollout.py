"""A kustomize overlay on an existing cluster, until Ray is ready or the cluster says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from sp500.errors import ConfigError, ResourcesError
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.document import Document

OPERATOR = (
    "helm upgrade --install kuberay-operator kuberay-operator --version 1.7.0"
    " --repo https://ray-project.github.io/kuberay-helm --namespace ray-system --create-namespace"
)


@dataclass(frozen=True)
class Rendered:
    """An overlay as kustomize renders it."""

    text: str
    name: str
    """Name of its RayCluster."""
    namespace: str
    claims: tuple[str, ...]


def rendered(text: str, where: str) -> Rendered:
    """What the manifests in `text` make. Raises ConfigError unless they hold one RayCluster, in a namespace."""
    documents: list[Document] = [one for one in yaml.safe_load_all(text) if one]
    clusters: list[dict[str, Any]] = [one["metadata"] for one in documents if one["kind"] == "RayCluster"]
    if len(clusters) != 1 or "namespace" not in clusters[0]:
        raise ConfigError(f"{where}: expected one RayCluster with a namespace, found {clusters}")
    claims = tuple(one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim")
    return Rendered(text, clusters[0]["name"], clusters[0]["namespace"], claims)


def apply(kubectl: Kubectl, overlay: Rendered) -> str:
    """Send the manifests: kubectl's line for each. Raises ResourcesError without an operator, or for one refused."""
    if "rayclusters.ray.io" not in kubectl.text("api-resources", "--api-group=ray.io", "--output=name").split():
        raise ResourcesError(
            f"this cluster has no KubeRay operator; whoever administers it installs it with\n  {OPERATOR}"
        )
    return kubectl.text("apply", "--filename=-", given=overlay.text)


def ready(cluster: Document) -> bool:
    """Whether a RayCluster's head is ready, and as many workers as it is never without.

    A status of an older generation tells of a cluster that the manifests have changed since.
    """
    status, generation = cluster.get("status", {}), cluster.get("metadata", {}).get("generation", 0)
    if status.get("observedGeneration", generation) < generation:
        return False
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    workers = status.get("readyWorkerReplicas", 0) >= status.get("minWorkerReplicas", 0)
    return conditions.get("HeadPodReady") == "True" and workers


def wait(
    kubectl: Kubectl,
    overlay: Rendered,
    *,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Return when its Ray cluster is ready. Raises ResourcesError with the cluster's reasons after `seconds`."""

    def why() -> list[str]:
        pods = kubectl.items("get", "pods", f"--selector=ray.io/cluster={overlay.name}")
        names = [overlay.name, *overlay.claims, *(pod["metadata"]["name"] for pod in pods if not reasons.ready(pod))]
        found = reasons.of_pods(pods) + reasons.of_events(kubectl.items("get", "events"), names)
        return found or (["there are no pods yet: does the operator run?"] if not pods else [])

    waiting.until(
        lambda: ready(kubectl.document("get", "raycluster", overlay.name)),
        why,
        what=f"RayCluster {overlay.name}",
        seconds=seconds,
        say=say,
    )
