"""Security rules of this project for pods and Services that a manifest asks for.

Schema and operator accept what is refused here: a cluster without a token, one that is open to the outside, a pod that
can take over its node, and an image whose contents change under its name. The dashboard's Jobs API runs any code.
"""

from __future__ import annotations

from collections.abc import Iterator

from sp500.jobs.manifests.manifest import Cluster, Container, Document, items, section
from sp500.jobs.operator.cluster_rules import Violation

OPEN_SERVICES = ("LoadBalancer", "NodePort")
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
Pod = tuple[str, Document]
"""The path of a pod's spec in the manifest, and that spec."""


def token_authentication(cluster: Cluster) -> Iterator[Violation]:
    """Require a token for the dashboard. With `authOptions: {}` the operator makes one that no pod asks for."""
    path, mode = f"{cluster.path}.authOptions.mode", section(cluster.spec, "authOptions").get("mode")
    if mode != "token":
        problem = "is unset, so everybody who reaches the dashboard can run code" if mode is None else f"is {mode!r}"
        yield _violation("token-authentication", path, problem, "set mode: token")


def private_service(cluster: Cluster) -> Iterator[Violation]:
    """Require that the head is reached only from inside the cluster or through a port-forward."""
    head, path = cluster.head.body, cluster.head.path
    service = section(section(head, "headService"), "spec").get("type")
    for where, kind in ((f"{path}.serviceType", head.get("serviceType")), (f"{path}.headService.spec.type", service)):
        if kind in OPEN_SERVICES:
            yield _violation("private-service", where, f"is {kind}", "leave it out, and use kubectl port-forward")
    if head.get("enableIngress"):
        yield _violation("private-service", f"{path}.enableIngress", "is true", "set it to false, or leave it out")


def no_privileged_container(pod: Pod) -> Iterator[Violation]:
    """Forbid privileged containers."""
    for container in _containers(pod):
        if section(container.body, "securityContext").get("privileged"):
            path = f"{container.path}.securityContext.privileged"
            yield _violation("no-privileged-container", path, "is true", "leave it out")


def no_root(pod: Pod) -> Iterator[Violation]:
    """Forbid to run as root. A pod that says nothing runs as its image says."""
    path, spec = pod
    yield from _root(path, spec)
    for container in _containers(pod):
        yield from _root(container.path, container.body)


def no_root_autoscaler(cluster: Cluster) -> Iterator[Violation]:
    """Forbid root in the autoscaler's container as well, which gets its context from the options."""
    yield from _root(f"{cluster.path}.autoscalerOptions", cluster.autoscaler)


def _root(path: str, body: Document) -> Iterator[Violation]:
    context = section(body, "securityContext")
    user, non_root = context.get("runAsUser"), context.get("runAsNonRoot")
    if user == 0 and user is not False:
        yield _violation("no-root", f"{path}.securityContext.runAsUser", "is 0", "set another uid, such as 1000")
    if non_root is False:
        yield _violation("no-root", f"{path}.securityContext.runAsNonRoot", "is false", "set it to true")


def no_host_path(pod: Pod) -> Iterator[Violation]:
    """Forbid volumes that are folders of the node."""
    path, spec = pod
    for at, volume in enumerate(items(spec.get("volumes"))):
        if "hostPath" in volume:
            where, source = f"{path}.volumes[{at}].hostPath", section(volume, "hostPath").get("path")
            yield _violation("no-host-path", where, f"is {source}", "use a claim or an emptyDir")


def no_host_namespace(pod: Pod) -> Iterator[Violation]:
    """Forbid pods that share their node's network or processes."""
    path, spec = pod
    for key in HOST_NAMESPACES:
        if spec.get(key):
            yield _violation("no-host-namespace", f"{path}.{key}", "is true", "leave it out")


def fixed_image(pod: Pod) -> Iterator[Violation]:
    """Require for every image a tag other than latest, or a digest."""
    for container in _containers(pod):
        image = container.body.get("image")
        if image and not _is_fixed(str(image)):
            yield _violation("fixed-image", f"{container.path}.image", f"is {image}", _OTHER_IMAGE)


def fixed_autoscaler_image(cluster: Cluster) -> Iterator[Violation]:
    """Require a fixed image of the autoscaler too, if it is not the head's."""
    image = cluster.autoscaler.get("image")
    if image and not _is_fixed(str(image)):
        yield _violation("fixed-image", f"{cluster.path}.autoscalerOptions.image", f"is {image}", _OTHER_IMAGE)


def of_cluster(cluster: Cluster) -> Iterator[Violation]:
    """Yield all violations of a Ray cluster and its pods."""
    for cluster_rule in CLUSTER_RULES:
        yield from cluster_rule(cluster)
    for group in cluster.groups:
        yield from of_pod((group.pod_path, group.pod))


def of_submitter(job: Document) -> Iterator[Violation]:
    """Yield all violations of the pod that submits a RayJob."""
    template = section(section(job, "spec"), "submitterPodTemplate")
    yield from of_pod(("spec.submitterPodTemplate.spec", section(template, "spec")))


def of_pod(pod: Pod) -> Iterator[Violation]:
    """Yield all violations of one pod."""
    for rule in POD_RULES:
        yield from rule(pod)


_OTHER_IMAGE = "name a tag other than latest, or a digest (NAME@sha256:...)"


def _is_fixed(image: str) -> bool:
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return bool(digest) or (bool(colon) and tag not in {"", "latest"})


def _containers(pod: Pod) -> Iterator[Container]:
    path, spec = pod
    for kind in ("containers", "initContainers"):
        for at, body in enumerate(items(spec.get(kind))):
            yield Container(f"{path}.{kind}[{at}]", body)


def _violation(rule: str, path: str, problem: str, remedy: str) -> Violation:
    return Violation(path, problem, remedy, ours=True, rule=rule)


CLUSTER_RULES = (token_authentication, private_service, no_root_autoscaler, fixed_autoscaler_image)
POD_RULES = (no_privileged_container, no_root, no_host_path, no_host_namespace, fixed_image)
