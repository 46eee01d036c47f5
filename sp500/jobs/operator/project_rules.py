"""Rules of this project: what schema and operator accept, and what then does not work.

Each was met on a cluster or is a default of the operator that works against the rest of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator

from sp500.jobs.manifests.manifest import Cluster, Container, Document, Group, clusters, items, quantity, section
from sp500.jobs.operator.violation import Violation

SUBMITTER = "ray-job-submitter"
RAY_NAMES = ("ray-head", "ray-worker")


def ray_first(cluster: Cluster) -> Iterator[Violation]:
    """Require Ray in the first container: the operator starts it there, whatever the container's name."""
    for group in cluster.groups:
        for container in group.containers[1:]:
            if container.body.get("name") in RAY_NAMES:
                yield _trap(
                    container.path, f"is {container.body['name']}, after another", "make it the first container"
                )


def dashboard_port(cluster: Cluster) -> Iterator[Violation]:
    """Require the port `dashboard` if ports are declared. The head's Service has only those, and jobs look for it."""
    ports = [port.get("name") for port in items(cluster.head.ray.body.get("ports"))]
    if ports and "dashboard" not in ports:
        path = f"{cluster.head.ray.path}.ports"
        yield _trap(path, "has no port named dashboard", "add {name: dashboard, containerPort: 8265}")


def memory(cluster: Cluster) -> Iterator[Violation]:
    """Require a memory request as large as the limit, by which Ray sizes itself, and a smaller object store."""
    for group in cluster.groups:
        if not group.containers:
            continue
        request, limit = (group.ray.resource(side, "memory") for side in ("requests", "limits"))
        path = f"{group.ray.path}.resources"
        if limit is None:
            yield _trap(f"{path}.limits.memory", "is unset, so Ray sizes itself by the node's memory", "set it")
        # Kubernetes uses the limit as a request that is unset.
        elif request is not None and quantity(request) != quantity(limit):
            problem = f"is {request}, the limit {limit}"
            yield _trap(f"{path}.requests.memory", problem, "make them equal: Ray counts on the limit")
        yield from _object_store(group, quantity(limit))


def _object_store(group: Group, limit: float | None) -> Iterator[Violation]:
    store = quantity(group.params.get("object-store-memory"))
    if store is not None and limit is not None and store >= limit:
        path, problem = f"{group.path}.rayStartParams.object-store-memory", f"is {store:.0f} bytes of {limit:.0f}"
        yield _trap(path, problem, "it is part of the pod's memory; about a third leaves room for the work")


def ray_version(cluster: Cluster) -> Iterator[Violation]:
    """Require rayVersion. Without it the operator's probes call wget, which slim images lack."""
    if cluster.version is None:
        path = f"{cluster.path}.rayVersion"
        yield _trap(path, "is unset or no version, so probes need wget", "set it to the image's, such as 2.60.0")


def autoscaler_version(cluster: Cluster) -> Iterator[Violation]:
    """Require the autoscaler's version.

    Ray's default is version 2, but the operator prepares pods only for a written one.
    """
    if cluster.autoscaling and not cluster.autoscaler.get("version"):
        yield _trap(f"{cluster.path}.autoscalerOptions.version", "is unset", "set version: v2")


def submitter(job: Document) -> Iterator[Violation]:
    """Require a restricted submitter if the head is restricted: its namespace may enforce that.

    The RayJob waits for ever, and only the submitter Job's events say why.
    """
    spec, path = section(job, "spec"), "spec.submitterPodTemplate"
    template = section(section(spec, "submitterPodTemplate"), "spec")
    if spec.get("submissionMode", "K8sJobMode") != "K8sJobMode":
        return
    containers = [
        Container(f"{path}.spec.containers[{at}]", body) for at, body in enumerate(items(template.get("containers")))
    ]
    if containers and containers[0].body.get("name") != SUBMITTER:
        yield _trap(
            f"{containers[0].path}.name", f"is {containers[0].body.get('name')}", f"the operator looks for {SUBMITTER}"
        )
    for cluster in clusters(job):
        head = cluster.head
        if not head.containers or find_security_gaps(head.pod, head.pod_path, head.containers):
            continue
        if not containers:
            yield _trap(path, "is unset next to a restricted head", "the operator's default is not restricted; set one")
        for where in find_security_gaps(template, f"{path}.spec", containers):
            yield _trap(where, "is not as restricted as the head", "use the head's security settings")


def find_security_gaps(pod: Document, path: str, containers: list[Container]) -> list[str]:
    """Return the paths at which a pod does not meet the security settings of Kubernetes' "restricted" standard."""
    whole = section(pod, "securityContext")
    wrong = []
    for container in containers:
        own, where = section(container.body, "securityContext"), f"{container.path}.securityContext"
        if own.get("allowPrivilegeEscalation") is not False:
            wrong.append(f"{where}.allowPrivilegeEscalation")
        if "ALL" not in (section(own, "capabilities").get("drop") or []):
            wrong.append(f"{where}.capabilities.drop")
        if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
            wrong.append(f"{path}.securityContext.runAsNonRoot")
        profile = section(own, "seccompProfile") or section(whole, "seccompProfile")
        if profile.get("type") not in {"RuntimeDefault", "Localhost"}:
            wrong.append(f"{path}.securityContext.seccompProfile")
    return wrong


def deadlines(job: Document) -> Iterator[Violation]:
    """Require a deadline of the start before that of the end."""
    spec = section(job, "spec")
    start, end = spec.get("preRunningDeadlineSeconds"), spec.get("activeDeadlineSeconds")
    if isinstance(start, int) and isinstance(end, int) and start >= end:
        problem = f"{start} is not before activeDeadlineSeconds {end}"
        yield _trap("spec.preRunningDeadlineSeconds", problem, "make it less")


def _trap(path: str, problem: str, remedy: str) -> Violation:
    return Violation(path, problem, remedy, ours=True)


CLUSTER_RULES = (ray_first, dashboard_port, memory, ray_version, autoscaler_version)
JOB_RULES = (submitter, deadlines)
