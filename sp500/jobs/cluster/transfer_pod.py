"""The pod through which files reach a claim or come from one: restricted, small, and gone afterwards."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sp500.errors import ResourcesError
from sp500.jobs.cluster import reasons, waiting
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.document import Document

# A pod whose client was killed ends by itself.
LIVES_SECONDS = 4 * 3600


@dataclass(frozen=True)
class Image:
    """What the pod runs, and how it is pulled."""

    name: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


def image_of(cluster: Document) -> Image:
    """The image of a RayCluster's head: it is at hand on its nodes, and has tar and sha256sum."""
    pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    ray = pod["containers"][0]
    secrets = tuple(secret["name"] for secret in pod.get("imagePullSecrets", []))
    return Image(ray["image"], ray.get("imagePullPolicy", "IfNotPresent"), secrets)


def manifest(name: str, claim: str, mount: str, image: Image, *, read_only: bool) -> Document:
    """A pod that does nothing but hold `claim` at the path `mount`; Pod Security "restricted" admits it."""
    container = {
        "name": "transfer",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": ["sleep", str(LIVES_SECONDS)],
        # The request is small, or the pod would find no room beside Ray on a laptop.
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
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
        "activeDeadlineSeconds": LIVES_SECONDS,
        # `sleep` hears no signal as the first process, so waiting for it would be in vain.
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
    seconds: float,
    say: Callable[[str], None],
) -> Iterator[str]:
    """Name of such a pod, ready, and deleted however the block ends. Raises ResourcesError when it never gets ready."""
    name = f"sp500-transfer-{secrets.token_hex(4)}"

    def pods() -> list[Document]:
        return kubectl.items("get", "pods", f"--field-selector=metadata.name={name}")

    def why() -> list[str]:
        return reasons.of_pods(pods()) + reasons.of_events(kubectl.items("get", "events"), [name, claim])

    try:
        kubectl.text(
            "apply", "--filename=-", given=json.dumps(manifest(name, claim, mount, image, read_only=read_only))
        )
        waiting.until(lambda: any(map(reasons.ready, pods())), why, what=f"pod {name}", seconds=seconds, say=say)
        yield name
    finally:
        try:
            kubectl.text("delete", "pod", name, "--ignore-not-found", "--wait=false")
        except ResourcesError as error:  # must not hide what went wrong before
            say(f"pod {name} could not be deleted and ends by itself in {LIVES_SECONDS // 3600} hours ({error})")


def _near_ray() -> Document:
    # A ReadWriteOnce claim is mounted by the pods of one node: go where Ray's are.
    term = {"labelSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}, "topologyKey": "kubernetes.io/hostname"}
    return {"weight": 100, "podAffinityTerm": term}
