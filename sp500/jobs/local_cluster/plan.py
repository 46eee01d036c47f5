"""A RayCluster manifest as nodes of a local cluster: what each pod is, and the `ray start` that makes it. Pure.

The rehearsal has the manifest's shape (a head without CPUs, so many workers of so many CPUs, the token) and this
machine's strength: four nodes of a CPU each on two cores take turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sp500.jobs.manifests.manifest import Cluster, Group, items, quantity, section

NOT_REHEARSED = (
    "image, claims, network policies, pod security, the service account: there are no pods",
    "memory limits: Ray counts them, nothing ends a process that uses more",
    "autoscaling: each group has the replicas that it starts with",
    "GPUs: no node has one here",
    "speed and room: the nodes share the CPUs and the memory of this machine",
)
# What the operator reads of rayStartParams, and a node here too; the rest is about addresses and ports.
TAKEN = ("num-cpus", "memory", "object-store-memory", "resources", "labels")


@dataclass(frozen=True)
class Node:
    """One pod as a node: `params` are those of `ray start`, `environment` what the container would have."""

    name: str
    head: bool
    params: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def cpus(self) -> int:
        """CPUs that Ray counts."""
        return int(self.params.get("num-cpus", 0))


def nodes(cluster: Cluster, folders: Mapping[str, Path]) -> list[Node]:
    """Return the head, and as many workers of each group as it starts with.

    `folders` replace the claims, by name: a variable whose value lies on a claim's mount gets the folder's path.
    """
    local_nodes = [_node(cluster.head, "head", folders, head=True)]
    for group in cluster.workers:
        name = str(group.body.get("groupName"))
        count = int(group.body.get("replicas") or group.body.get("minReplicas") or 0)
        local_nodes += [_node(group, f"{name}-{number}", folders, head=False) for number in range(count)]
    return local_nodes


def claims(cluster: Cluster) -> list[str]:
    """Return the names of the claims that pods mount."""
    volumes = [volume for group in cluster.groups for volume in items(group.pod.get("volumes"))]
    names = (section(volume, "persistentVolumeClaim").get("claimName") for volume in volumes)
    return sorted({str(name) for name in names if name})


def command(node: Node, *, ray: Path, port: int, dashboard: int, folder: Path) -> list[str]:
    """Return the `ray start` of a node whose head listens at `port`. All its files are below its own `folder`.

    Nodes that shared one would unpack a job's working directory over each other, under the feet of what runs in it.
    """
    params = {
        **node.params,
        "node-ip-address": "127.0.0.1",
        "dashboard-agent-listen-port": "0",
        "metrics-export-port": "0",
        # Nodes of one machine would share Ray's default range, which may hold the dashboard's port as well.
        "min-worker-port": "0",
        "max-worker-port": "0",
        "temp-dir": str(folder),
    }
    if node.head:
        params |= {"port": str(port), "dashboard-host": "127.0.0.1", "dashboard-port": str(dashboard)}
    else:
        params |= {"address": f"127.0.0.1:{port}"}
    flags = [f"--{name}={value}" for name, value in params.items()]
    return [str(ray), "start", *(["--head"] if node.head else []), "--block", "--disable-usage-stats", *flags]


def _node(group: Group, name: str, folders: Mapping[str, Path], *, head: bool) -> Node:
    params = {key: str(value) for key, value in group.params.items() if key in TAKEN}
    cpu = quantity(group.ray.resource("limits", "cpu") or group.ray.resource("requests", "cpu"))
    memory = quantity(group.ray.resource("limits", "memory"))
    if cpu is not None:
        params.setdefault("num-cpus", str(math.ceil(cpu)))  # as the operator rounds
    if memory is not None:
        params.setdefault("memory", str(int(memory)))
    if labels := section(group.body, "labels"):
        params["labels"] = ",".join(f"{key}={value}" for key, value in labels.items())
    if resources := section(group.body, "resources"):
        params["resources"] = json.dumps(resources)
    # By this variable the operator gives Ray the group, which becomes the label ray.io/node-group.
    group_name = "headgroup" if head else str(group.body.get("groupName"))
    return Node(name, head, params, {"RAY_NODE_TYPE_NAME": group_name, **_environment(group, folders)})


def _environment(group: Group, folders: Mapping[str, Path]) -> dict[str, str]:
    claim_of = {
        volume.get("name"): section(volume, "persistentVolumeClaim").get("claimName")
        for volume in items(group.pod.get("volumes"))
    }
    mounts = {
        str(mount.get("mountPath")).rstrip("/"): folders.get(str(claim_of.get(mount.get("name"))))
        for mount in items(group.ray.body.get("volumeMounts"))
    }
    return {name: _here(value, mounts) for name, value in group.ray.env.items() if isinstance(value, str)}


def _here(value: str, mounts: Mapping[str, Path | None]) -> str:
    """Return a value that is a path on a claim's mount as a path in the claim's folder."""
    for mount, folder in mounts.items():
        if folder and (value == mount or value.startswith(f"{mount}/")):
            return str(folder) + value.removeprefix(mount)
    return value
