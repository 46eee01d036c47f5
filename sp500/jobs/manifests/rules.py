"""Rules for manifests, checked before anything is sent: traps of the operator, and the security of pods and Services.

Schema and operator accept what is refused here. The traps then do not work: each was met on a cluster, or is a default
of the operator that works against the rest of the manifest. Security rules refuse a cluster without a token or open to
the outside, a pod that can take over its node, and an image whose contents change under its name: the dashboard's Jobs
API runs any code. Types, unknown fields and the operator's own rules are left to the API server, which the executor
asks in a dry run, and to the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sp500.errors import ConfigError
from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Container, Document, Group, clusters, items, quantity, section

KINDS = tuple(names.LONGEST)
SUBMITTER = "ray-job-submitter"
RAY_NAMES = ("ray-head", "ray-worker")
OPEN_SERVICES = ("LoadBalancer", "NodePort")
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True)
class Violation:
    """One broken rule: the field, what is wrong with it, and what to do."""

    path: str
    found: str
    remedy: str
    rule: str = ""
    """Id of a security rule; empty for others."""

    def __str__(self) -> str:
        return f"{self.path} {self.found}; {self.remedy}" + (f" [{self.rule}]" if self.rule else "")


def check(document: Document) -> None:
    """Raise ConfigError that lists every violation, with a line each."""
    if broken := violations(document):
        name = section(document, "metadata").get("name", "")
        raise ConfigError("\n".join(f"{document.get('kind')} {name}: {violation}" for violation in broken))


def violations(document: Document) -> list[Violation]:
    """Return every rule that a RayCluster, RayJob or RayService breaks; none for other kinds."""
    if document.get("kind") not in KINDS:
        return []
    broken = [*object_name(document)]
    for cluster in clusters(document):
        broken += [violation for rule in CLUSTER_RULES for violation in rule(cluster)]
        broken += [violation for group in cluster.groups for violation in pod_security(group.pod_path, group.pod)]
    if document["kind"] == "RayJob":
        template = section(section(document, "spec"), "submitterPodTemplate")
        broken += submitter(document)
        broken += pod_security("spec.submitterPodTemplate.spec", section(template, "spec"))
    return broken


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


def ray_first(cluster: Cluster) -> Iterator[Violation]:
    """Require containers, and Ray in the first: the operator starts it there, whatever the container's name."""
    for group in cluster.groups:
        if not group.containers:
            yield Violation(f"{group.pod_path}.containers", "is empty", "add one; the first container is Ray's")
        for container in group.containers[1:]:
            if container.body.get("name") in RAY_NAMES:
                yield Violation(
                    container.path, f"is {container.body['name']}, after another", "make it the first container"
                )


def dashboard_port(cluster: Cluster) -> Iterator[Violation]:
    """Require the port `dashboard` if ports are declared. The head's Service has only those, and jobs look for it."""
    ports = [port.get("name") for port in items(cluster.head.ray.body.get("ports"))]
    if ports and "dashboard" not in ports:
        path = f"{cluster.head.ray.path}.ports"
        yield Violation(path, "has no port named dashboard", "add {name: dashboard, containerPort: 8265}")


def memory(cluster: Cluster) -> Iterator[Violation]:
    """Require a memory request as large as the limit, by which Ray sizes itself, and a smaller object store."""
    for group in cluster.groups:
        if not group.containers:
            continue
        request, limit = (group.ray.resource(side, "memory") for side in ("requests", "limits"))
        path = f"{group.ray.path}.resources"
        if limit is None:
            yield Violation(f"{path}.limits.memory", "is unset, so Ray sizes itself by the node's memory", "set it")
        # Kubernetes uses the limit as a request that is unset.
        elif request is not None and quantity(request) != quantity(limit):
            problem = f"is {request}, the limit {limit}"
            yield Violation(f"{path}.requests.memory", problem, "make them equal: Ray counts on the limit")
        yield from _object_store(group, quantity(limit))


def _object_store(group: Group, limit: float | None) -> Iterator[Violation]:
    store = quantity(group.params.get("object-store-memory"))
    if store is not None and limit is not None and store >= limit:
        path, problem = f"{group.path}.rayStartParams.object-store-memory", f"is {store:.0f} bytes of {limit:.0f}"
        yield Violation(path, problem, "it is part of the pod's memory; about a third leaves room for the work")


def ray_version(cluster: Cluster) -> Iterator[Violation]:
    """Require rayVersion. Without it the operator's probes call wget, which slim images lack."""
    if cluster.version is None:
        path = f"{cluster.path}.rayVersion"
        yield Violation(path, "is unset or no version, so probes need wget", "set it to the image's, such as 2.60.0")


def autoscaler_version(cluster: Cluster) -> Iterator[Violation]:
    """Require the autoscaler's version.

    Ray's default is version 2, but the operator prepares pods only for a written one.
    """
    if cluster.autoscaling and not cluster.autoscaler.get("version"):
        yield Violation(f"{cluster.path}.autoscalerOptions.version", "is unset", "set version: v2")


def submitter(job: Document) -> Iterator[Violation]:
    """Require a template of the submitter: a namespace that enforces the restricted standard refuses the default.

    The RayJob then waits for ever, and only the submitter Job's events say why.
    """
    spec, path = section(job, "spec"), "spec.submitterPodTemplate"
    if spec.get("submissionMode", "K8sJobMode") != "K8sJobMode":
        return
    containers = items(section(section(spec, "submitterPodTemplate"), "spec").get("containers"))
    if not containers:
        yield Violation(path, "is unset", "the operator's default is not restricted; set one with the head's security")
    elif (name := containers[0].get("name")) != SUBMITTER:
        yield Violation(f"{path}.spec.containers[0].name", f"is {name}", f"the operator looks for {SUBMITTER}")


def token_authentication(cluster: Cluster) -> Iterator[Violation]:
    """Require a token for the dashboard. With `authOptions: {}` the operator makes one that no pod asks for."""
    path, mode = f"{cluster.path}.authOptions.mode", section(cluster.spec, "authOptions").get("mode")
    if mode != "token":
        problem = "is unset, so everybody who reaches the dashboard can run code" if mode is None else f"is {mode!r}"
        yield Violation(path, problem, "set mode: token", "token-authentication")


def private_service(cluster: Cluster) -> Iterator[Violation]:
    """Require that the head is reached only from inside the cluster or through a port-forward."""
    head, path = cluster.head.body, cluster.head.path
    service = section(section(head, "headService"), "spec").get("type")
    for where, kind in ((f"{path}.serviceType", head.get("serviceType")), (f"{path}.headService.spec.type", service)):
        if kind in OPEN_SERVICES:
            yield Violation(where, f"is {kind}", "leave it out, and use kubectl port-forward", "private-service")
    if head.get("enableIngress"):
        yield Violation(f"{path}.enableIngress", "is true", "set it to false, or leave it out", "private-service")


def autoscaler_security(cluster: Cluster) -> Iterator[Violation]:
    """Hold the autoscaler's container, which the operator makes of the options, to the rules for containers."""
    yield from _container_security(Container(f"{cluster.path}.autoscalerOptions", cluster.autoscaler))


def pod_security(path: str, pod: Document) -> Iterator[Violation]:
    """Forbid root, folders of the node, and its network or processes. `path` is that of the pod's spec."""
    yield from _root(path, pod)
    for at, volume in enumerate(items(pod.get("volumes"))):
        if "hostPath" in volume:
            where, source = f"{path}.volumes[{at}].hostPath", section(volume, "hostPath").get("path")
            yield Violation(where, f"is {source}", "use a claim or an emptyDir", "no-host-path")
    for key in HOST_NAMESPACES:
        if pod.get(key):
            yield Violation(f"{path}.{key}", "is true", "leave it out", "no-host-namespace")
    for kind in ("containers", "initContainers"):
        for at, body in enumerate(items(pod.get(kind))):
            yield from _container_security(Container(f"{path}.{kind}[{at}]", body))


def _container_security(container: Container) -> Iterator[Violation]:
    """Forbid privileged containers and root. Require a tag other than latest, or a digest."""
    if section(container.body, "securityContext").get("privileged"):
        path = f"{container.path}.securityContext.privileged"
        yield Violation(path, "is true", "leave it out", "no-privileged-container")
    yield from _root(container.path, container.body)
    image = container.body.get("image")
    if image and not _is_fixed(str(image)):
        remedy = "name a tag other than latest, or a digest (NAME@sha256:...)"
        yield Violation(f"{container.path}.image", f"is {image}", remedy, "fixed-image")


def _root(path: str, body: Document) -> Iterator[Violation]:
    """Forbid root in a pod or a container. One that says nothing runs as its image says."""
    context = section(body, "securityContext")
    user, non_root = context.get("runAsUser"), context.get("runAsNonRoot")
    if user == 0 and user is not False:
        yield Violation(f"{path}.securityContext.runAsUser", "is 0", "set another uid, such as 1000", "no-root")
    if non_root is False:
        yield Violation(f"{path}.securityContext.runAsNonRoot", "is false", "set it to true", "no-root")


def _is_fixed(image: str) -> bool:
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return bool(digest) or (bool(colon) and tag not in {"", "latest"})


CLUSTER_RULES = (
    ray_first,
    dashboard_port,
    memory,
    ray_version,
    autoscaler_version,
    token_authentication,
    private_service,
    autoscaler_security,
)
