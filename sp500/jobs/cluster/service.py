"""A RayService on a cluster: apply it, and wait until it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sp500.errors import ResourcesError
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.rollout import OPERATOR
from sp500.jobs.manifests.manifest import Document, items, section
from sp500.jobs.manifests.rayservice import COMPONENT

LOOKS = 4
"""Two seconds apart, as the operator's own."""


def check(kubectl: Kubectl) -> None:
    """Raises ResourcesError for a cluster without the operator or the namespace."""
    if "rayservices.ray.io" not in kubectl.text("api-resources", "--api-group=ray.io", "--output=name").split():
        raise ResourcesError(f"this cluster has no KubeRay operator; its administrator installs it with\n  {OPERATOR}")
    if kubectl.lacks_namespace():
        raise ResourcesError(f"there is no namespace {kubectl.namespace}: kubectl create namespace {kubectl.namespace}")


def apply(kubectl: Kubectl, manifests: str) -> None:
    """Apply them, or none if the API server refuses one. Raises ResourcesError with its reasons."""
    kubectl.text("apply", "--filename=-", "--dry-run=server", given=manifests)
    kubectl.text("apply", "--filename=-", given=manifests)


def answers(service: Document) -> bool:
    """Whether pods of the newest spec take requests, all applications run, and no other pods are on their way.

    Counted are the endpoints: a worker without a replica is never ready, and need not be.
    """
    status = section(service, "status")
    if status.get("observedGeneration", 0) < section(service, "metadata").get("generation", 0):
        return False
    conditions = {one.get("type"): one.get("status") for one in items(status.get("conditions"))}
    coming = conditions.get("UpgradeInProgress") == "True"
    applications = section(section(status, "activeServiceStatus"), "applicationStatuses")
    running = bool(applications) and all(section(applications, one).get("status") == "RUNNING" for one in applications)
    endpoints = int(status.get("numServeEndpoints") or 0)
    return conditions.get("Ready") == "True" and running and not coming and endpoints > 0


def wait(kubectl: Kubectl, name: str, *, seconds: float, say: Callable[[str], None]) -> None:
    """Return when it answers at LOOKS looks in a row. Raises ResourcesError with the cluster's reasons after `seconds`.

    One look is not enough: the operator tells what Ray said before it got the new configuration.
    """
    looks = 0

    def found() -> Document:
        """The RayService as it is now."""
        return kubectl.document("get", "rayservice", name)

    def why() -> list[str]:
        """What the cluster says of why it does not answer."""
        labels = ",".join(f"{label}={value}" for label, value in COMPONENT.items())
        pods = kubectl.items("get", "pods", f"--selector={labels}")
        names = [name, *(pod["metadata"]["name"] for pod in pods if not reasons.ready(pod))]
        return (
            list(complaints(found())) + reasons.of_pods(pods) + reasons.of_events(kubectl.items("get", "events"), names)
        )

    def steady() -> bool:
        """Whether it has been answering for a while."""
        nonlocal looks
        looks = looks + 1 if answers(found()) else 0
        return looks >= LOOKS

    waiting.until(steady, why, what=f"RayService {name}", seconds=seconds, say=say)


def complaints(service: Document) -> Iterator[str]:
    """What Ray Serve says of applications that do not run."""
    for which in ("activeServiceStatus", "pendingServiceStatus"):
        applications = section(section(section(service, "status"), which), "applicationStatuses")
        for name in applications:
            body = section(applications, name)
            if body.get("status") != "RUNNING" and (said := str(body.get("message") or "").strip()):
                yield f"application {name}: {body.get('status')}: {said.splitlines()[-1]}"
