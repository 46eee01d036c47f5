"""A RayService: a Ray cluster whose workers answer over HTTP.

One truth for pods, as for jobs: they are those of the RayCluster document, with what serving needs. It keeps the
autoscaler, since replicas come and go with the load.
"""

from __future__ import annotations

import math
from copy import deepcopy

from sp500.errors import ConfigError
from sp500.jobs.manifests.manifest import Cluster, Document, Group, field_text, items, quantity, section
from sp500.jobs.manifests.pods import CLUSTER_WORKERS, GPU

NAME = "sp500-serve"
"""Of the RayService, and of the Secret with the key."""
LABELS = {"app.kubernetes.io/name": "serve", "app.kubernetes.io/part-of": "sp500"}
"""Of both."""
IMPORT_PATH = "sp500.commands.serving.application:build"
KEY_FOLDER = "/etc/sp500/serve"
COMPONENT = {"app.kubernetes.io/component": "serve"}
"""Label of its pods, which NetworkPolicies choose."""
PORT = 8000
# With HAProxy a request takes a third to a sixth of the CPU that it takes with Ray's own proxy (docs/LOG.md).
# All have to be there before Serve's controller starts.
FAST_PROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # HAProxy's heads have 16 KiB at most. A client that is silent for so long is ended; Ray's default is an hour.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "30",
    # The replicas' own servers, to which HAProxy sends, have no limits otherwise.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "sp500.serving.connections:limit_uvicorn",
}
# Only a worker with a replica has a proxy, and only that may get requests.
READY = {
    "httpGet": {"path": "/-/healthz", "port": PORT},
    "initialDelaySeconds": 5,
    "periodSeconds": 2,
    "timeoutSeconds": 5,
    "failureThreshold": 3,
}


def build_rayservice(cluster: Document, *, model: str = "main", image: str = "", namespace: str = "") -> Document:
    """Return the RayService that serves `model`, on the head and the first worker group of a RayCluster document.

    `image` needs the extra; left out, it is the document's with the suffix `-serve`. Raises ConfigError for a document
    without workers, and where it names its image by a digest, to which there is no suffix.
    """
    template, metadata = Cluster("spec", section(cluster, "spec"), {}), section(cluster, "metadata")
    if not template.workers:
        raise ConfigError("spec.workerGroupSpecs of the cluster is empty; replicas run on workers")
    old, group = str(template.head.ray.body.get("image")), template.workers[0]
    if "@" in old and not image:
        raise ConfigError(f"the cluster's image {old} is named by digest: set --image to one with the extra `serve`")
    new = image or f"{old}-serve"
    gpus = group.ray.resource("limits", GPU)
    cpus = math.ceil(quantity(group.ray.resource("limits", "cpu")) or 1)  # as the operator counts
    most = int(group.body.get("maxReplicas", 1))
    ray = {key: value for key, value in template.spec.items() if key != "upgradeStrategy"} | {
        "headGroupSpec": _group(template.head, old, new),
        "workerGroupSpecs": [_worker(group, old, new)],
    }
    where = namespace or metadata.get("namespace")
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": NAME} | ({"namespace": where} if where else {}) | {"labels": dict(LABELS)},
        "spec": {
            "upgradeStrategy": {"type": "NewCluster"},
            "excludeHeadPodFromServeSvc": True,
            "serveConfigV2": field_text(_serve_config(model, most, cpus, int(gpus or 0))),
            "rayClusterConfig": ray,
        },
    }


def _serve_config(model: str, most: int, cpus: int, gpus: int) -> Document:
    """Return what the operator sends to Ray Serve; a change of it replaces no pod."""
    deployment = {
        "name": "model",
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": most,
            "target_ongoing_requests": 8,
            "upscale_delay_s": 10,
            "downscale_delay_s": 300,
        },
        # A replica fills a worker, so that each is one pod.
        "ray_actor_options": {"num_cpus": cpus} | ({"num_gpus": 1} if gpus else {}),
    }
    application = {
        "name": "sp500",
        "import_path": IMPORT_PATH,
        "route_prefix": "/",
        "args": {"name": model, "key_file": f"{KEY_FOLDER}/key"},
        "deployments": [deployment],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": PORT, "request_timeout_s": 30},  # noqa: S104 - a key is needed
        "applications": [application],
    }


def _worker(group: Group, old: str, new: str) -> Document:
    body = _group(group, old, new)
    pod = body["template"]["spec"]
    ray = pod["containers"][0]
    ray["readinessProbe"] = deepcopy(READY)
    # Optional: pods start without it, and answer 401 until it is there.
    pod["volumes"] = [*pod.get("volumes", []), {"name": "key", "secret": {"secretName": NAME, "optional": True}}]
    ray["volumeMounts"] = [
        *ray.get("volumeMounts", []),
        {"name": "key", "mountPath": KEY_FOLDER, "readOnly": True},
    ]
    return body | {"replicas": 1, "minReplicas": 1}


def _group(group: Group, old: str, new: str) -> Document:
    body = deepcopy(group.body)
    pod = body["template"]["spec"]
    labels = section(section(body["template"], "metadata"), "labels") | COMPONENT
    body["template"]["metadata"] = section(body["template"], "metadata") | {"labels": labels}
    for container in [*pod["containers"], *items(pod.get("initContainers"))]:
        if container.get("image") == old:
            container["image"] = new
    ray = pod["containers"][0]
    entries = [entry for entry in ray.get("env", []) if entry["name"] not in {CLUSTER_WORKERS, *FAST_PROXY}]
    ray["env"] = entries + [{"name": name, "value": value} for name, value in FAST_PROXY.items()]
    return body
