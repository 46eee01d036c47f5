"""The operator's rules for features behind a gate: stored fault tolerance, network policy, TLS, history, suspension.

Of the history server, the variables that each storage asks for are left to the operator.
"""

from __future__ import annotations

from collections.abc import Iterator

from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Document, Group, items, section
from sp500.jobs.operator.violation import Gates, Violation, check_gate

STORAGE_BACKENDS = ("GCS", "S3", "AZUREBLOB", "ALIYUNOSS")
# What each mode leaves open, so that rules for it have no meaning.
OPEN_SIDE = {"DenyAllEgress": "ingressRules", "DenyAllIngress": "egressRules"}


def group_suspension(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    """A worker group is suspended where the gate is open and no autoscaler would start it again."""
    for group in cluster.workers:
        if group.body.get("suspend") is True:
            yield from check_gate(f"{group.path}.suspend", "RayJobDeletionPolicy", gates)
            if cluster.autoscaling:
                yield Violation(f"{group.path}.suspend", "is true with an autoscaler", "leave one of the two out")


def storage(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    """Fault tolerance stores in Redis or in RocksDB, with the fields of that one."""
    options, path = section(cluster.spec, "gcsFaultToleranceOptions"), f"{cluster.path}.gcsFaultToleranceOptions"
    if options.get("backend") != "rocksdb":
        if "storage" in options:
            yield Violation(f"{path}.storage", "is set for backend redis", "set backend: rocksdb, or leave it out")
        return
    yield from check_gate(f"{path}.backend", "GCSFaultToleranceEmbeddedStorage", gates)
    for key in ("redisAddress", "redisUsername", "redisPassword"):
        if key in options:
            yield Violation(f"{path}.{key}", "is set for backend rocksdb", "leave it out")
    claim = section(options, "storage")
    described = [key for key in ("size", "storageClassName", "accessModes") if key in claim]
    if "claimName" in claim and described:
        yield Violation(f"{path}.storage.{described[0]}", "conflicts with claimName", "name a claim or describe one")
    yield from _own_storage(cluster.head)


def _own_storage(head: Group) -> Iterator[Violation]:
    for name in ("RAY_gcs_storage", "RAY_gcs_storage_path"):
        if name in head.ray.env:
            yield Violation(f"{head.ray.path}.env", f"has {name} for backend rocksdb", "leave it to the operator")
    yield from _check_reserved_names(head, "gcs-storage", "/data/gcs")


def _check_reserved_names(group: Group, volume_name: str, folder: str) -> Iterator[Violation]:
    """A volume's name and a folder that the operator needs."""
    if any(volume.get("name") == volume_name for volume in items(group.pod.get("volumes"))):
        yield Violation(
            f"{group.pod_path}.volumes", f"has {volume_name}, the operator's own", "name the volume otherwise"
        )
    for container in group.containers:
        if any(mount.get("mountPath") == folder for mount in items(container.body.get("volumeMounts"))):
            yield Violation(f"{container.path}.volumeMounts", f"has {folder}, the operator's own", "mount it elsewhere")


def history(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    """The history server's collector has an image and a known storage, and is the operator's."""
    if "historyServerOptions" not in cluster.spec:
        return
    path = f"{cluster.path}.historyServerOptions"
    yield from check_gate(path, "RayClusterHistoryServer", gates)
    collector = section(section(cluster.spec, "historyServerOptions"), "collectorOptions")
    if not collector.get("image"):
        yield Violation(f"{path}.collectorOptions.image", "is unset", "name the collector's image")
    backend = {entry.get("name"): entry.get("value") for entry in items(collector.get("env"))}.get("STORAGE_BACKEND")
    if backend not in STORAGE_BACKENDS:
        remedy = f"give STORAGE_BACKEND as a value: {', '.join(STORAGE_BACKENDS)}"
        yield Violation(f"{path}.collectorOptions.env", f"has STORAGE_BACKEND {backend!r}", remedy)
    for group in cluster.groups:
        for container in group.containers:
            if container.body.get("name") == "ray-history-collector":
                yield Violation(f"{container.path}.name", "is the operator's collector", "name the container otherwise")


def network_policy(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    """The operator's NetworkPolicy has rules for what it denies, and for groups that exist."""
    if "networkPolicy" not in cluster.spec:
        return
    policy, path = section(cluster.spec, "networkPolicy"), f"{cluster.path}.networkPolicy"
    yield from check_gate(path, "RayClusterNetworkPolicy", gates)
    mode = str(policy.get("mode"))
    of_groups = items(policy.get("workerGroups"))
    parts: list[tuple[str, Document]] = [(f"{path}.{role}", section(policy, role)) for role in ("head", "worker")]
    parts += [(f"{path}.workerGroups[{at}]", body) for at, body in enumerate(of_groups)]
    for where, part in parts:
        if (side := OPEN_SIDE.get(mode)) and part.get(side):
            yield Violation(f"{where}.{side}", f"is set in mode {mode}", f"leave it out, or deny {side[:-5]} as well")
    group_names = [group.body.get("groupName") for group in cluster.workers]
    for at, body in enumerate(of_groups):
        if body.get("groupName") not in group_names:
            problem = f"{body.get('groupName')!r} is not a worker group"
            yield Violation(
                f"{path}.workerGroups[{at}].groupName", problem, f"name one of {', '.join(map(str, group_names))}"
            )
    for group in cluster.workers:
        if not names.DNS_1123.fullmatch(name := str(group.body.get("groupName"))):
            remedy = "a NetworkPolicy selects by it; at most 63 of a-z, 0-9 and '-'"
            yield Violation(f"{group.path}.groupName", f"{name!r} is not a valid name with a networkPolicy", remedy)


def tls(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    """With the operator's TLS, no variable, volume or folder of it is set by hand."""
    if "tlsOptions" not in cluster.spec:
        return
    yield from check_gate(f"{cluster.path}.tlsOptions", "RayClusterMTLS", gates)
    places = [(group.ray.path, list(group.ray.env)) for group in cluster.groups]
    autoscaler = [str(entry.get("name")) for entry in items(cluster.autoscaler.get("env"))]
    for path, variables in [*places, (f"{cluster.path}.autoscalerOptions", autoscaler)]:
        for name in variables:
            if name == "RAY_USE_TLS" or name.startswith("RAY_TLS_"):
                yield Violation(f"{path}.env", f"has {name} beside tlsOptions", "leave it to the operator")
    for group in cluster.groups:
        yield from _check_reserved_names(group, "ray-tls", "/etc/ray/tls")


RULES = (group_suspension, storage, history, network_policy, tls)
