"""Rules for the fields of manifests that users change: those of the KubeRay operator, and traps of this project.

The operator's (KubeRay 1.7, validation and webhook) are those that no schema holds. It checks them when it meets the
object, long after the API server accepted it, and reports in an event. Only names, groups, numbers of workers and the
token are checked here: a copy of all others would have to follow each of its releases. A RayJob's fields besides its
cluster are made out of a checked JobSpec (`manifests/rayjob`).

The traps are what schema and operator accept, and what then does not work. Each was met on a cluster or is a default of
the operator that works against the rest of the manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Container, Document, Group, clusters, items, quantity, section

SUBMITTER = "ray-job-submitter"
RAY_NAMES = ("ray-head", "ray-worker")


@dataclass(frozen=True)
class Violation:
    """One broken rule: the field, what is wrong with it, and what to do.

    `ours`: the operator would accept it, and it would not work.
    """

    path: str
    found: str
    remedy: str
    ours: bool = False
    rule: str = ""
    """Id of a security rule; empty for others."""

    def __str__(self) -> str:
        return f"{self.path} {self.found}; {self.remedy}" + (f" [{self.rule}]" if self.rule else "")


def object_name(document: Document) -> Iterator[Violation]:
    """Require a name that is a label with room for what the operator appends."""
    metadata, kind = section(document, "metadata"), str(document["kind"])
    if "name" not in metadata and "generateName" in metadata:
        return
    name, longest = str(metadata.get("name", "")), names.LONGEST[kind]
    if len(name) > longest:
        problem = f"{name!r} has {len(name)} characters"
        yield Violation("metadata.name", problem, f"a {kind} has {longest} at most, since the operator appends to it")
    elif not names.DNS_1035.fullmatch(name):
        yield Violation(
            "metadata.name", f"{name!r} is not a valid name", "a-z, 0-9 and '-', a letter first and no '-' last"
        )


def containers(cluster: Cluster) -> Iterator[Violation]:
    """Require a container in every pod."""
    for group in cluster.groups:
        if not group.containers:
            yield Violation(f"{group.pod_path}.containers", "is empty", "add one; the first container is Ray's")


def group_names(cluster: Cluster) -> Iterator[Violation]:
    """Forbid two worker groups of one name."""
    counts = Counter(group.body.get("groupName") for group in cluster.workers)
    for group in cluster.workers:
        if counts[name := group.body.get("groupName")] > 1:
            yield Violation(
                f"{group.path}.groupName", f"{name!r} is the name of several groups", "name each differently"
            )


def replicas(cluster: Cluster) -> Iterator[Violation]:
    """Require the smallest and largest number of workers, in order."""
    for group in cluster.workers:
        low, high = (group.body.get(key) for key in ("minReplicas", "maxReplicas"))
        if not cluster.autoscaling and (low is None or high is None):
            path = f"{group.path}.{'minReplicas' if low is None else 'maxReplicas'}"
            yield Violation(path, "is unset without an autoscaler", "set minReplicas and maxReplicas")
        for key, value in (("minReplicas", low), ("maxReplicas", high)):
            if isinstance(value, int) and value < 0:
                yield Violation(f"{group.path}.{key}", f"is {value}", "set 0 or more, or leave it out")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Violation(f"{group.path}.minReplicas", f"{low} is above maxReplicas {high}", "make it that or less")


def token(cluster: Cluster) -> Iterator[Violation]:
    """Require Ray 2.52 for token authentication."""
    mode, version = section(cluster.spec, "authOptions").get("mode"), cluster.spec.get("rayVersion")
    if mode == "token" and (cluster.version is None or cluster.version < (2, 52)):
        problem = f"is token with {'no rayVersion' if version is None else f'rayVersion {version!r}'}"
        remedy = "it needs Ray 2.52; set rayVersion to the image's"
        yield Violation(f"{cluster.path}.authOptions.mode", problem, remedy)


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


DOCUMENT_RULES = (object_name,)
CLUSTER_RULES = (containers, group_names, replicas, token)
CLUSTER_TRAPS = (ray_first, dashboard_port, memory, ray_version, autoscaler_version)
JOB_TRAPS = (submitter, deadlines)
