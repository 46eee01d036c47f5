"""`sp500 cluster deploy`: an overlay onto an existing cluster, until Ray is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands.cluster import transfer
from sp500.errors import ConfigError
from sp500.jobs.cluster import rollout
from sp500.jobs.cluster.kubectl import Kubectl


class Deploy(transfer.ClusterFlags):
    """Apply an overlay to a cluster that has the KubeRay operator, and wait until Ray is ready."""

    overlay: Annotated[str, tyro.conf.Positional]
    """Name of an overlay, or a folder for kustomize."""
    data: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Folder to upload as well. Can be given several times."""
    overlays: Path = Path("cluster/overlays")
    """Folder of the named overlays."""


def _deploy(flags: Deploy) -> str:
    folder = next(filter(Path.is_dir, (flags.overlays / flags.overlay, Path(flags.overlay))), None)
    if folder is None:
        known = ", ".join(sorted(path.name for path in flags.overlays.glob("*/"))) or "none"
        raise ConfigError(f"{flags.overlay}: neither a folder nor an overlay (the overlays are: {known})")
    overlay = rollout.parse(Kubectl("default", flags.context).text("kustomize", str(folder)), str(folder))
    kubectl = Kubectl(overlay.namespace, flags.context)
    kubectl.reach()
    applied = rollout.apply(kubectl, overlay, transfer.say)
    for data in flags.data:
        transfer.say(transfer.send(kubectl, flags, data))
    rollout.wait(kubectl, applied, seconds=flags.timeout, say=transfer.say)
    return f"RayCluster {overlay.name} in namespace {overlay.namespace} is ready"


main = transfer.cluster_verb("cluster deploy", Deploy, _deploy)
