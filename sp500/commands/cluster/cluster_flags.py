"""What the verbs of `sp500 cluster` share: flags, an end for what the disk refuses, and a folder's way to a claim."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from sp500.config import Frozen
from sp500.console import arguments, output
from sp500.errors import ConfigError, ResourcesError
from sp500.jobs.cluster import data_claim, transfer_pod
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.upload import upload
from sp500.jobs.manifests import rayservice
from sp500.jobs.manifests.manifest import section

CLUSTER = "sp500"

F = TypeVar("F", bound="ClusterFlags")


class ClusterFlags(Frozen):
    """Flags of every verb that reaches a cluster."""

    context: str | None = None
    """Context of your kubeconfig. Default: the current one."""
    image: str | None = None
    """Image of the transfer pod, with tar and sha256sum. Default: the Ray head's."""
    timeout: float = 600.0
    """Seconds that pods may take to get ready."""


class TransferFlags(ClusterFlags):
    """Flags of every verb that only moves files."""

    namespace: str = "sp500"
    """Namespace of the claims."""
    overwrite: bool = False
    """Replace what is there under that name."""


def run_verb(model: type[F], argv: Sequence[str], verb: str, act: Callable[[F], tuple[str, int]]) -> int:
    """Parse the flags and act: its text on stdout, its exit code. Exits with 2 on a wrong flag."""

    def run() -> tuple[str, int]:
        flags = arguments.parse(model, argv, f"sp500 {verb}")
        try:
            return act(flags)
        except OSError as error:  # a full disk, a folder that may not be read: its text names the file
            raise ResourcesError(str(error)) from error

    return output.run_command(run, only_json=False)


def send(kubectl: Kubectl, flags: ClusterFlags, folder: Path, name: str = "", *, overwrite: bool = False) -> str:
    """Put a folder onto the data claim, under its own name if none is given: what became of it, in a line.

    Raises ConfigError, DataError and ResourcesError as `upload` does.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder to upload")
    name = name or folder.resolve().name
    target, advice = f"{data_claim.MOUNT}/{name}", "--overwrite replaces them, --name NAME uploads under another name"
    contents = data_claim.local_contents(folder, name)
    with pod(kubectl, flags, data_claim.CLAIM, data_claim.MOUNT, read_only=False) as running:
        sent = upload(kubectl, running, folder, contents, target, overwrite=overwrite, advice=advice)
    result = f"uploaded: {len(contents)} files, checksums equal" if sent else "is there already, file by file"
    return f"{target} {result}"


def pod(
    kubectl: Kubectl,
    flags: ClusterFlags,
    claim: str,
    mount: str,
    *,
    read_only: bool,
    memory: str = transfer_pod.MEMORY,
    serving: bool = False,
) -> AbstractContextManager[str]:
    """A transfer pod that holds `claim`, with the image of the RayCluster; with `serving` rather the RayService's.

    Raises ResourcesError where there is no image for it, or no room.
    """
    kubectl.reach()
    service = kubectl.document("get", "rayservice", rayservice.NAME) if serving else {}
    if flags.image:
        image = transfer_pod.Image(flags.image)
    elif service:
        # Of the cluster that answers: the newest spec may name an image that is not there.
        active = section(section(service, "status"), "activeServiceStatus").get("rayClusterName")
        answering = kubectl.document("get", "raycluster", str(active)) if active else {}
        image = transfer_pod.image_of(answering.get("spec") or service["spec"]["rayClusterConfig"])
    elif cluster := kubectl.document("get", "raycluster", CLUSTER):
        image = transfer_pod.image_of(cluster["spec"])
    else:
        if kubectl.lacks_namespace():
            raise ResourcesError(f"there is no namespace {kubectl.namespace}: give --namespace")
        if serving:
            raise ResourcesError(f"namespace {kubectl.namespace} has no server: sp500 serve --on kuberay makes it")
        raise ResourcesError(
            f"namespace {kubectl.namespace} has no RayCluster {CLUSTER} whose image the transfer pod could run:"
            " scripts/deploy makes it, or name an image with tar and sha256sum: --image"
        )
    return transfer_pod.running(
        kubectl, claim, mount, image, read_only=read_only, memory=memory, seconds=flags.timeout, say=say
    )


def say(text: str) -> None:
    """What goes on meanwhile, on stderr."""
    print(text, file=sys.stderr, flush=True)
