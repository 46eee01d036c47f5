"""The pod that files are transferred through: restricted, small, deleted afterwards.

If its client was killed, the pod ends by itself as soon as nothing has been connected to it for a while.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sp500.errors import ResourcesError, Unreachable
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.manifests.manifest import Document

# No transfer lasts longer.
LIFETIME_SECONDS = 4 * 3600
# Longer than a client computes checksums between two commands.
IDLE_SECONDS = 600
# The requests are small, so that the pod fits next to Ray on a laptop.
MEMORY = "256Mi"


def _resources(memory: str) -> Document:
    return {
        "requests": {"cpu": "50m", "memory": memory, "ephemeral-storage": "16Mi"},
        "limits": {"cpu": "500m", "memory": memory, "ephemeral-storage": "64Mi"},
    }


# Ends when the pod has had no process but this one at so many looks in a row: each `kubectl exec` is a process in it.
WATCH = """
looks=0
while [ "$looks" -lt "$2" ]; do
    sleep "$1"
    set -- "$1" "$2" "$3" "$3"/[0-9]*
    if [ $# -gt 4 ]; then looks=0; else looks=$((looks + 1)); fi
    set -- "$1" "$2" "$3"
done
"""


@dataclass(frozen=True)
class Image:
    """The image of the pod, and how it is pulled."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


def image_of(cluster: Document) -> Image:
    """Return the head's image from the spec of its cluster: it is on the nodes already, and has tar and sha256sum."""
    pod = cluster["headGroupSpec"]["template"]["spec"]
    ray = pod["containers"][0]
    secrets = tuple(secret["name"] for secret in pod.get("imagePullSecrets", []))
    return Image(ray["image"], ray.get("imagePullPolicy", "IfNotPresent"), secrets)


def watch_argv(seconds: float = 15, looks: int = IDLE_SECONDS // 15, processes: str = "/proc") -> list[str]:
    """Return the pod's command. It ends after `looks` looks at `processes`, `seconds` apart, saw no other one."""
    return ["sh", "-c", WATCH, "watch", str(seconds), str(looks), processes]


def manifest(name: str, claim: str, mount: str, image: Image, *, read_only: bool, memory: str = MEMORY) -> Document:
    """Return a pod that only mounts `claim` at `mount`. Pod Security "restricted" admits it."""
    container = {
        "name": "transfer",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": watch_argv(),
        "resources": _resources(memory),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "claim", "mountPath": mount, "readOnly": read_only}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
        "imagePullSecrets": [{"name": secret} for secret in image.pull_secrets],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFETIME_SECONDS,
        # The shell ignores SIGTERM as the first process, so waiting for it would be in vain.
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_near_ray()]}},
    }
    labels = {"app.kubernetes.io/name": "transfer", "app.kubernetes.io/part-of": "sp500"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


@contextmanager
def running(
    kubectl: Kubectl,
    claim: str,
    mount: str,
    image: Image,
    *,
    read_only: bool,
    memory: str = MEMORY,
    seconds: float,
    say: Callable[[str], None],
) -> Iterator[str]:
    """Yield the name of such a pod once it is ready, and delete it afterwards. Raises ResourcesError if it never is."""
    name = f"sp500-transfer-{secrets.token_hex(4)}"

    def pods() -> list[Document]:
        return kubectl.items("get", "pods", f"--field-selector=metadata.name={name}")

    def why() -> list[str]:
        here = pods()
        subjects = [*here, kubectl.document("get", "persistentvolumeclaim", claim)]
        return reasons.of_pods(here) + reasons.of_events(kubectl.items("get", "events"), subjects)

    body = json.dumps(manifest(name, claim, mount, image, read_only=read_only, memory=memory))
    created = True
    try:
        try:
            kubectl.text("apply", "--filename=-", stdin=body)
        except ResourcesError as error:  # a server that went silent may have made it all the same
            created = isinstance(error, Unreachable)
            raise
        waiting.until(lambda: any(map(reasons.ready, pods())), why, what=f"pod {name}", seconds=seconds, say=say)
        yield name
    finally:
        try:
            if created:
                kubectl.text("delete", "pod", name, "--ignore-not-found", "--wait=false")
        except ResourcesError as error:  # must not hide what went wrong before
            say(f"pod {name} could not be deleted and ends by itself after {IDLE_SECONDS // 60} minutes ({error})")


def _near_ray() -> Document:
    # A ReadWriteOnce claim is mounted by the pods of one node: go where Ray's are.
    term = {"labelSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}, "topologyKey": "kubernetes.io/hostname"}
    return {"weight": 100, "podAffinityTerm": term}
