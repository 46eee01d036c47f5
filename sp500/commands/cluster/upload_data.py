"""`sp500 cluster upload-data`: a folder onto the cluster's data claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands.cluster import cluster_flags
from sp500.jobs.cluster.kubectl import Kubectl


class UploadData(cluster_flags.TransferFlags):
    """Copy a folder to the cluster's data claim, verified by checksums on both sides."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Pods find it as /data/NAME."""
    name: str = ""
    """Name on the claim. Default: the folder's own."""


def main(argv: Sequence[str]) -> int:
    """Upload the folder and return the exit code."""
    return cluster_flags.run_verb(UploadData, argv, "cluster upload-data", _upload)


def _upload(flags: UploadData) -> tuple[str, int]:
    kubectl = Kubectl(flags.namespace, flags.context)
    return cluster_flags.send(kubectl, flags, flags.folder, flags.name, overwrite=flags.overwrite), 0
