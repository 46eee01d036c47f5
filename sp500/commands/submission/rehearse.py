"""`sp500 jobs rehearse`: a manifest's cluster on this machine, and the end of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.commands.verb import verb
from sp500.config import Frozen
from sp500.errors import ConfigError
from sp500.formatting import name_command, some
from sp500.jobs import working_dir
from sp500.jobs.client import state_folder
from sp500.jobs.kuberay.target import read_cluster
from sp500.jobs.local_cluster import plan, processes
from sp500.jobs.manifests import manifest
from sp500.jobs.queue.ledger import private_folder

RUNS = "sp500-runs"


class Rehearse(Frozen):
    """Start a local Ray cluster with the nodes of a manifest, or stop it."""

    manifest: Annotated[Path, tyro.conf.Positional] = Path("cluster/raycluster.yaml")
    """File with the RayCluster."""
    down: bool = False
    """Stop the cluster and all its processes."""
    port: int = Field(8265, gt=0, lt=65536)
    """Port of the dashboard, on 127.0.0.1."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder used in place of the claim of runs. $SP500_RUNS_DIR sets another default."""
    state_dir: Path | None = None
    """Folder for the state and logs of the local cluster. Default: rehearsal in the folder of the
    queue."""


def _rehearse(flags: Rehearse) -> tuple[str, int]:
    state = flags.state_dir or state_folder() / "rehearsal"
    if flags.down:
        count = processes.down(state)
        return (f"{some(count, 'node')} ended" if count else "no rehearsal is up"), 0
    return _up(flags, state), 0


def _up(flags: Rehearse, state: Path) -> str:
    try:
        document = read_cluster(flags.manifest)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--cluster ", "", 1)) from None
    [cluster] = manifest.clusters(document)
    mounts = {
        claim: flags.runs_dir.resolve() if claim == RUNS else state / "claims" / claim for claim in plan.claims(cluster)
    }
    for claim, folder in mounts.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}, for the claim {claim}: cannot be made ({error.strerror})") from error
    private_folder(state)  # logs are written there
    upload = working_dir.check(Path.cwd())
    processes.up(plan.nodes(cluster, mounts), state, flags.port, lambda line: print(line, file=sys.stderr))
    return "\n".join(
        [
            "Not rehearsed:",
            *(f"  - {line}" for line in plan.NOT_REHEARSED),
            f"The claims are {', '.join(f'{claim} = {folder}' for claim, folder in mounts.items())}.",
            f"A job uploads {upload / 2**20:.1f} MiB of this folder. What a client sets, and then does:",
            "",
            "    export RAY_AUTH_MODE=token",
            f"    export RAY_ADDRESS=http://127.0.0.1:{flags.port}",
            "    export RAY_JOB_SUBMIT_HOOK=sp500.jobs.working_dir.submit_hook    # refuses a folder that is too large",
            f"    {Path(sys.executable).with_name('ray')} job submit --working-dir . -- {name_command('scale')}",
            "",
            "scripts/rehearse --down ends it.",
        ]
    )


main = verb("jobs rehearse", Rehearse, _rehearse)
