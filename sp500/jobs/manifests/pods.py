"""Pods of a job: those of the RayCluster document, changed by what the job asks for.

What the job does not mention (volumes, security, probes, topology) stays as it is in the document.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

from sp500.errors import ConfigError
from sp500.jobs.manifests.manifest import Cluster, Document, Group, items, quantity, section
from sp500.jobs.spec import JobSpec
from sp500.machine.units import size_bytes

GPU = "nvidia.com/gpu"
# Read by sp500.distributed.capacity.
CLUSTER_WORKERS = "SP500_CLUSTER_WORKERS"
FILES_FOLDER, FILES_ARCHIVE = "/etc/sp500-files", "files.zip"
SETTINGS_FOLDER, SETTINGS_FILE = "/etc/sp500", "settings.yaml"
# Ray's own share of memory for its object store, for a document that says none; and the least that Ray accepts.
OBJECT_STORE = 0.3
LEAST_STORE = 75 * 2**20
# Left to guess, NCCL and Gloo may take a loopback or a bridge for the pod's interface, and wait for ever. WARN names
# what failed. A collective that fails ends the process, so that the group restarts.
NCCL = {
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAME": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
# On the node's network the interface has the node's name for it.
HOST_NAMES = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
# Enough for `ray job submit` and for following its log.
SUBMITTER = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
# Settings of a cluster that only the autoscaler reads, or that the operator refuses in a RayJob.
NOT_A_JOBS = ("enableInTreeAutoscaling", "autoscalerOptions", "upgradeStrategy", "suspend", "managedBy")


def settings_map(spec: JobSpec) -> str:
    """Return the name of the ConfigMap that holds the settings."""
    return f"{spec.name}-settings"


def files_map(spec: JobSpec) -> str:
    """Return the name of the ConfigMap that holds the archive of files."""
    return f"{spec.name}-files"


def mount_files(spec: JobSpec, ray: Document) -> None:
    """Mount the archive of files in all pods of a cluster, where the agent of each node unpacks it."""
    for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
        _mount(group["template"]["spec"], "sp500-files", files_map(spec), FILES_FOLDER)


def _mount(pod: Document, name: str, config_map: str, folder: str) -> None:
    """Mount a ConfigMap in the container of Ray."""
    ray = pod["containers"][0]
    pod["volumes"] = [*pod.get("volumes", []), {"name": name, "configMap": {"name": config_map}}]
    mount = {"name": name, "mountPath": folder, "readOnly": True}
    ray["volumeMounts"] = [*ray.get("volumeMounts", []), mount]


def ray_cluster(spec: JobSpec, cluster: Document) -> Document:
    """Return the spec of the RayCluster document with the job's pods.

    Raises ConfigError for a document without workers.
    """
    template = Cluster("spec", section(cluster, "spec"), {})
    if not template.workers:
        raise ConfigError(
            "spec.workerGroupSpecs of the cluster is empty; it needs the group that a job's workers are of"
        )
    # Of several groups, the one that has GPUs if the job wants some, and none if it does not.
    suits = [group for group in template.workers if bool(group.ray.resource("limits", GPU)) == bool(spec.gpus)]
    settings = {key: value for key, value in template.spec.items() if key not in NOT_A_JOBS}
    image = template.head.ray.body.get("image")
    head = _head(template.head, spec, image, items(template.autoscaler.get("volumeMounts")))
    worker = _worker((suits or template.workers)[0], spec, image)
    _announce_size(head, worker)
    return settings | {"headGroupSpec": head, "workerGroupSpecs": [worker]}


def _announce_size(head: Document, worker: Document) -> None:
    """Tell the pods how large their cluster gets, since scripts in them wait for that many workers and no more."""
    limits = section(worker["template"]["spec"]["containers"][0]["resources"], "limits")
    size = {
        "replicas": worker["replicas"],
        "maxReplicas": worker["maxReplicas"],
        "CPU": math.ceil(quantity(limits.get("cpu")) or 0),  # as the operator counts
        "GPU": int(quantity(limits.get(GPU)) or 0),
    }
    # Without a number of CPUs, the scripts ask Ray instead.
    entries = [{"name": CLUSTER_WORKERS, "value": json.dumps(size)}] if size["CPU"] else []
    for group in (head, worker):
        ray = group["template"]["spec"]["containers"][0]
        ray["env"] = entries + [entry for entry in ray["env"] if entry["name"] != CLUSTER_WORKERS]


def submitter(head: Group) -> Document:
    """Return the template of the pod that submits the argv.

    It is as restricted as the head; the operator's default is not.

    A namespace that enforces the restricted standard forbids that default, and the RayJob would wait for ever.
    """
    ray = head.ray.body
    container = {
        "name": "ray-job-submitter",
        "image": ray.get("image"),
        "imagePullPolicy": ray.get("imagePullPolicy"),
        "resources": deepcopy(SUBMITTER),
        "securityContext": ray.get("securityContext"),
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": head.pod.get("securityContext"),
        "imagePullSecrets": head.pod.get("imagePullSecrets"),
        "nodeSelector": head.pod.get("nodeSelector"),
        "tolerations": head.pod.get("tolerations"),
        "containers": [_drop_none(container)],
    }
    labels = {"app.kubernetes.io/part-of": "sp500", "app.kubernetes.io/name": "submitter"}
    return {"metadata": {"labels": labels}, "spec": _drop_none(pod)}


def _head(group: Group, spec: JobSpec, image: Any, autoscalers: list[Document]) -> Document:
    """Return the head's group. Volumes that only the removed autoscaler mounted (`autoscalers`) are removed too."""
    pod = _pod(group, spec, image)
    ray = pod["containers"][0]
    used = {mount["name"] for container in _containers(pod) for mount in items(container.get("volumeMounts"))}
    gone = {mount["name"] for mount in autoscalers} - used
    if gone:
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] not in gone]
    # Nobody is left on the head who speaks to the API server.
    pod["automountServiceAccountToken"] = False
    ray["env"] = [entry for entry in ray["env"] if entry["name"] != "RAY_enable_autoscaler_v2"]
    if spec.settings:
        _mount(pod, "sp500-settings", settings_map(spec), SETTINGS_FOLDER)
    return _with_pod(group, pod)


def _worker(group: Group, spec: JobSpec, image: Any) -> Document:
    pod = _pod(group, spec, image)
    ray = pod["containers"][0]
    resources = section(ray, "resources")
    # What Ray counts: the limits, and requests if there are no limits.
    own = _times(section(resources, "requests") | section(resources, "limits"), _scale(group, spec))
    requested = {
        "cpu": str(spec.cpus) if spec.cpus else own.get("cpu"),
        "memory": spec.memory.removesuffix("B") if spec.memory else own.get("memory"),
        GPU: str(spec.gpus) if spec.gpus else None,
    }
    if spec.gpus and spec.world_size > 1:
        known = {entry["name"] for entry in ray["env"]} | (HOST_NAMES if pod.get("hostNetwork") else set())
        ray["env"] += [{"name": name, "value": value} for name, value in NCCL.items() if name not in known]
    amounts = _drop_none(requested)
    ray["resources"] = {
        side: {key: value for key, value in section(resources, side).items() if key != GPU} | amounts
        for side in ("requests", "limits")
    }
    if spec.node_labels:
        pod["nodeSelector"] = section(pod, "nodeSelector") | spec.node_labels
    if taints := [*spec.tolerations, *([f"{GPU}:NoSchedule"] if spec.gpus else [])]:
        known = pod.get("tolerations", [])
        pod["tolerations"] = known + [toleration for toleration in map(_toleration, taints) if toleration not in known]
    body = _with_pod(group, pod)
    # The operator reads CPUs, GPUs and memory off the limits.
    params = {key: value for key, value in group.params.items() if key not in {"num-cpus", "num-gpus", "memory"}}
    body["rayStartParams"] = params | {"object-store-memory": str(_object_store(group, spec))}
    if custom := section(body, "resources"):
        body["resources"] = {key: value for key, value in custom.items() if key not in {"CPU", "GPU", "memory"}}
    replicas = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), spec.workers)
    return {key: value for key, value in body.items() if key not in {"idleTimeoutSeconds", "priority"}} | replicas


def _scale(group: Group, spec: JobSpec) -> float:
    """Return a worker's size as a multiple of the document's pod: CPUs and memory grow with the GPUs."""
    return spec.gpus / (quantity(group.ray.resource("limits", GPU)) or 1) if spec.gpus else 1.0


def _times(resources: Document, scale: float) -> Document:
    """Return the CPUs and memory of so many pods in one. CPUs are rounded up to whole ones, as Ray counts them."""
    cpus, memory = quantity(resources.get("cpu")), quantity(resources.get("memory"))
    if scale == 1 or cpus is None or memory is None:
        return resources
    return resources | {"cpu": str(math.ceil(cpus * scale)), "memory": f"{int(memory * scale) // 2**20}Mi"}


def _object_store(group: Group, spec: JobSpec) -> int:
    """Return the bytes of the object store: the document's own, or its share of memory in the job's."""
    store, limit = quantity(group.params.get("object-store-memory")), quantity(group.ray.resource("limits", "memory"))
    if store and not spec.memory:
        return max(int(store * _scale(group, spec)), LEAST_STORE)
    share = store / limit if store and limit else OBJECT_STORE
    memory = size_bytes(spec.memory) if spec.memory else limit or 0
    return max(int(share * memory), LEAST_STORE)


def _pod(group: Group, spec: JobSpec, image: Any) -> Document:
    """Return what head and workers have in common. `image` is the one that the document uses for Ray."""
    pod = deepcopy(group.pod)  # which may be the same object for head and workers, by a YAML anchor
    for container in _containers(pod):
        if spec.image and container.get("image") == image:
            container["image"] = spec.image
    ray = pod["containers"][0]
    ours = _environment(spec)
    names = {entry["name"] for entry in ours}
    ray["env"] = [entry for entry in ray.get("env", []) if entry["name"] not in names] + ours
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    if spec.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.pull_secrets]
    return pod


def _containers(pod: Document) -> list[Document]:
    return [*pod["containers"], *pod.get("initContainers", [])]


def _environment(spec: JobSpec) -> list[Document]:
    plain = [{"name": name, "value": literal(value)} for name, value in spec.environment.items()]
    references = [(name, reference.split("/")) for name, reference in spec.secrets.items()]
    return plain + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in references
    ]


def literal(text: str) -> str:
    """Return text that means what it says, although Kubernetes reads $(NAME) as a reference and $$ as one $."""
    return text.replace("$", "$$")


def _toleration(taint: str) -> Document:
    label, _, effect = taint.rpartition(":")
    key, equals, value = label.partition("=")
    match = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **match, "effect": effect}


def _with_pod(group: Group, pod: Document) -> Document:
    return group.body | {"template": group.body["template"] | {"spec": pod}}


def _drop_none(body: Document) -> Document:
    return {key: value for key, value in body.items() if value is not None}
