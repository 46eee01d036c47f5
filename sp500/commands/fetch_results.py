"""`sp500 cluster fetch-results`: ended runs from the cluster's claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands import cluster_flags
from sp500.errors import RunExists
from sp500.jobs.cluster import claims
from sp500.jobs.cluster.kubectl import Kubectl


class FetchResults(cluster_flags.TransferFlags):
    """Bring ended runs from the cluster's claim, checksummed on both sides."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs; none named: all that have ended."""
    runs_dir: Path = Path("runs")
    """Folder that they come into."""


def main(argv: Sequence[str]) -> int:
    """Fetch, to the exit code."""
    return cluster_flags.concluded(FetchResults, argv, "cluster fetch-results", _fetched)


def _fetched(flags: FetchResults) -> tuple[str, int]:
    kubectl = Kubectl(flags.namespace, flags.context)
    with cluster_flags.pod(kubectl, flags, "sp500-runs", claims.RUNS, read_only=True) as pod:
        result = claims.fetch(kubectl, pod, flags.runs_dir, flags.names, overwrite=flags.overwrite)
    told = [f"{flags.runs_dir / name} fetched, checksums equal" for name in result.new]
    told += [f"{flags.runs_dir / name} is here already, file by file" for name in result.same]
    if result.kept:
        for line in told:
            cluster_flags.say(line)
        raise RunExists(
            f"{', '.join(result.kept)}: another run of that name is in {flags.runs_dir} and was kept;"
            " --overwrite replaces it, --runs-dir OTHER fetches into another folder"
        )
    return "\n".join(told) or "no run has ended on the claim yet", 0
