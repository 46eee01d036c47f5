"""A RayService on a cluster: apply it, and wait until it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sp500.errors import ResourcesError
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.rollout import OPERATOR
from sp500.jobs.manifests.manifest import Document, items, section
from sp500.jobs.manifests.rayservice import COMPONENT

LOOKS, FAILED_LOOKS = 4, 15
"""Two seconds apart, as the operator's own: how often it has to answer, or to have failed, in a row."""


def check(kubectl: Kubectl) -> None:
    """Check that the cluster has the operator and the namespace. Raises ResourcesError if not."""
    if "rayservices.ray.io" not in kubectl.text("api-resources", "--api-group=ray.io", "--output=name").split():
        raise ResourcesError(f"this cluster has no KubeRay operator; its administrator installs it with\n  {OPERATOR}")
    if kubectl.lacks_namespace():
        raise ResourcesError(
            f"namespace {kubectl.namespace} does not exist: kubectl create namespace {kubectl.namespace}"
        )


def apply(kubectl: Kubectl, manifests: str) -> None:
    """Apply them, or none if the API server refuses one. Raises ResourcesError with its reasons."""
    kubectl.text("apply", "--filename=-", "--dry-run=server", stdin=manifests)
    kubectl.text("apply", "--filename=-", stdin=manifests)


def answers(service: Document) -> bool:
    """Return whether pods of the newest spec serve requests, all applications run, and no other pods are on their way.

    Counted are the endpoints: a worker without a replica is never ready, and need not be.
    """
    status = section(service, "status")
    if status.get("observedGeneration", 0) < section(service, "metadata").get("generation", 0):
        return False
    conditions = _conditions(status)
    coming = conditions.get("UpgradeInProgress") == "True"
    applications = section(section(status, "activeServiceStatus"), "applicationStatuses")
    running = bool(applications) and all(
        section(applications, name).get("status") == "RUNNING" for name in applications
    )
    endpoints = int(status.get("numServeEndpoints") or 0)
    return conditions.get("Ready") == "True" and running and not coming and endpoints > 0


def has_failed(service: Document) -> bool:
    """Return whether Ray Serve has given up on the newest spec."""
    status = section(service, "status")
    if status.get("observedGeneration", 0) < section(service, "metadata").get("generation", 0):
        return False
    which = "pendingServiceStatus" if _conditions(status).get("UpgradeInProgress") == "True" else "activeServiceStatus"
    applications = section(section(status, which), "applicationStatuses")
    return any(section(applications, name).get("status") == "DEPLOY_FAILED" for name in applications)


def wait(kubectl: Kubectl, name: str, *, seconds: float, say: Callable[[str], None]) -> None:
    """Return when it answers at LOOKS looks in a row.

    One look is not enough: the operator may report what Ray said before it got the new configuration.
    Raises ResourcesError with the cluster's reasons after `seconds`, and earlier if Ray Serve has given up.
    """
    looks = failures = 0
    before = {_event(event) for event in kubectl.items("get", "events")}

    def get_service() -> Document:
        """Return the RayService as it is now."""
        return kubectl.document("get", "rayservice", name)

    def why() -> list[str]:
        """Return the reasons that the service does not answer."""
        labels = ",".join(f"{label}={value}" for label, value in COMPONENT.items())
        pods = kubectl.items("get", "pods", f"--selector={labels}")
        service = get_service()
        subjects = [service, *(pod for pod in pods if not reasons.ready(pod))]
        events = [event for event in kubectl.items("get", "events") if _event(event) not in before]
        return list(complaints(service)) + reasons.of_pods(pods) + reasons.of_events(events, subjects)

    def steady() -> bool:
        """Return whether the service has been answering for a while."""
        nonlocal looks, failures
        service = get_service()
        looks = looks + 1 if answers(service) else 0
        failures = failures + 1 if has_failed(service) else 0
        if failures >= FAILED_LOOKS:
            raise ResourcesError("\n  ".join([f"RayService {name} does not start:", *complaints(service)]))
        return looks >= LOOKS

    waiting.until(steady, why, what=f"RayService {name}", seconds=seconds, say=say)


def _conditions(status: Document) -> dict[str, str]:
    return {str(condition.get("type")): str(condition.get("status")) for condition in items(status.get("conditions"))}


def _event(event: Document) -> tuple[str, str]:
    return str(section(event, "metadata").get("uid")), str(event.get("count"))


def complaints(service: Document) -> Iterator[str]:
    """Yield Ray Serve's messages about applications that do not run and their deployments, which have the reason."""
    for which in ("activeServiceStatus", "pendingServiceStatus"):
        applications = section(section(section(service, "status"), which), "applicationStatuses")
        for name in applications:
            body = section(applications, name)
            if body.get("status") != "RUNNING" and (message := str(body.get("message") or "").strip()):
                yield f"application {name}: {body.get('status')}: {message.splitlines()[-1]}"
            deployments = section(body, "serveDeploymentStatuses")
            for deployment_name in deployments:
                deployment = section(deployments, deployment_name)
                if deployment.get("status") != "HEALTHY" and (message := str(deployment.get("message") or "").strip()):
                    yield f"deployment {deployment_name}: {deployment.get('status')}: {message.splitlines()[-1]}"
