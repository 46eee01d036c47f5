"""Files to and from a cluster's claims: `sp500 cluster upload-data`, `fetch-results`, and what other verbs use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.commands.verb import Main, verb
from sp500.config import RUN_NAME, Frozen
from sp500.errors import ConfigError, ResourcesError, RunExists
from sp500.jobs.cluster import runs_claim, transfer_pod
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.runs_claim import Fetched, RunsClaim
from sp500.jobs.cluster.upload import DATA_CLAIM, DATA_MOUNT, local_contents, upload
from sp500.jobs.manifests import rayservice
from sp500.jobs.manifests.manifest import section
from sp500.machine.units import size_bytes
from sp500.runs.store import REPORT

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


class UploadData(TransferFlags):
    """Copy a folder to the cluster's data claim, verified by checksums on both sides."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Pods find it as /data/NAME."""
    name: str = ""
    """Name on the claim. Default: the folder's own."""


class FetchResults(TransferFlags):
    """Copy ended runs from the cluster's claim, verified by checksums on both sides."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of runs. Default: all that have ended."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder to fetch into. $SP500_RUNS_DIR sets another default."""
    max_size: str = "50GiB"
    """Most that all runs fetched by this command may hold together."""


def cluster_verb(name: str, model: type[F], act: Callable[[F], str | tuple[str, int]]) -> Main:
    """Return the `main` of a verb, in which an error of the disk is one of a resource."""

    def run(flags: F) -> tuple[str, int]:
        try:
            result = act(flags)
        except OSError as error:  # a full disk, a folder that may not be read: its text names the file
            raise ResourcesError(str(error)) from error
        return (result, 0) if isinstance(result, str) else result

    return verb(name, model, run)


def send(kubectl: Kubectl, flags: ClusterFlags, folder: Path, name: str = "", *, overwrite: bool = False) -> str:
    """Put a folder onto the data claim, under its own name if none is given: what became of it, in a line.

    Raises ConfigError, DataError and ResourcesError as `upload` does.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder to upload")
    name = name or folder.resolve().name
    target, advice = f"{DATA_MOUNT}/{name}", "--overwrite replaces them, --name NAME uploads under another name"
    contents = local_contents(folder, name)
    with pod(kubectl, flags, DATA_CLAIM, DATA_MOUNT, read_only=False) as running:
        sent = upload(kubectl, running, folder, contents, target, overwrite=overwrite, advice=advice)
    result = f"uploaded: {len(contents)} files, checksums equal" if sent else "the same files exist already"
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
    """Return a transfer pod that holds `claim`, with the image of the RayCluster, or of the RayService if `serving`.

    Raises ResourcesError if there is no image for it, or no room.
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
            raise ResourcesError(f"namespace {kubectl.namespace} does not exist: set --namespace")
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
    """Print a message about progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def _upload(flags: UploadData) -> str:
    kubectl = Kubectl(flags.namespace, flags.context)
    return send(kubectl, flags, flags.folder, flags.name, overwrite=flags.overwrite)


def _fetch(flags: FetchResults) -> tuple[str, int]:
    try:
        max_bytes = size_bytes(flags.max_size)
    except ValueError as error:
        raise ConfigError(f"--max-size: {error}") from None
    kubectl = Kubectl(flags.namespace, flags.context)
    with pod(kubectl, flags, runs_claim.CLAIM, runs_claim.MOUNT, read_only=True) as running:
        claim = RunsClaim(kubectl, running, flags.runs_dir)
        result = claim.fetch(flags.names, _is_run_name, max_bytes=max_bytes, overwrite=flags.overwrite)
    for name, reason in result.failed.items():
        say(f"{name}: {reason}")
    return _text(result, flags.runs_dir), _exit_code(result)


def _is_run_name(name: str) -> bool:
    return bool(RUN_NAME.fullmatch(name)) and name != REPORT


def _text(result: Fetched, runs: Path) -> str:
    lines = [
        f"{runs / name} fetched: {len(listing.sizes)} files, {listing.total_bytes / 2**20:.1f} MiB, checksums equal"
        for name, listing in result.new.items()
    ]
    lines += [f"{runs / name} is already here with the same files" for name in result.same]
    return "\n".join(lines) or ("" if result.failed else "No run on the claim has ended yet.")


def _exit_code(result: Fetched) -> int:
    """Return 0 if every run is here; a run that failed to transfer matters more than one that was kept."""
    errors = sorted(result.failed.values(), key=lambda reason: isinstance(reason, RunExists))
    return errors[0].exit_code if errors else 0


upload_data = cluster_verb("cluster upload-data", UploadData, _upload)
fetch_results = cluster_verb("cluster fetch-results", FetchResults, _fetch)
