"""`sp500 cluster fetch-results`: ended runs from the cluster's claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.commands.cluster import cluster_flags
from sp500.config import RUN_NAME
from sp500.errors import ConfigError, RunExists
from sp500.jobs.cluster import runs_claim
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.runs_claim import Fetched, RunsClaim
from sp500.machine.units import size_bytes
from sp500.runs.store import REPORT


class FetchResults(cluster_flags.TransferFlags):
    """Copy ended runs from the cluster's claim, verified by checksums on both sides."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of runs. Default: all that have ended."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder to fetch into. $SP500_RUNS_DIR sets another default."""
    max_size: str = "50GiB"
    """Most that all runs fetched by this command may hold together."""


def main(argv: Sequence[str]) -> int:
    """Fetch the runs and return the exit code."""
    return cluster_flags.run_verb(FetchResults, argv, "cluster fetch-results", _fetch)


def _fetch(flags: FetchResults) -> tuple[str, int]:
    try:
        max_bytes = size_bytes(flags.max_size)
    except ValueError as error:
        raise ConfigError(f"--max-size: {error}") from None
    kubectl = Kubectl(flags.namespace, flags.context)
    with cluster_flags.pod(kubectl, flags, runs_claim.CLAIM, runs_claim.MOUNT, read_only=True) as pod:
        claim = RunsClaim(kubectl, pod, flags.runs_dir)
        result = claim.fetch(flags.names, _is_run_name, max_bytes=max_bytes, overwrite=flags.overwrite)
    for name, reason in result.failed.items():
        cluster_flags.say(f"{name}: {reason}")
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
    """0 if every run is here; a run that failed to transfer matters more than one that was kept."""
    errors = sorted(result.failed.values(), key=lambda reason: isinstance(reason, RunExists))
    return errors[0].exit_code if errors else 0
