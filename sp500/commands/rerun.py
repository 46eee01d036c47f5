"""`sp500 jobs rerun`: the same job once more, under a new id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sp500.commands import queue_flags
from sp500.commands.render import ray_cluster
from sp500.jobs.queue.job import NewJob
from sp500.jobs.queue.queue import new_id
from sp500.jobs.spec import JobSpec


class Rerun(queue_flags.OneJob):
    """Queue a job once more, just as it was: command, settings, folder, environment and place."""

    cluster: Path = Path("cluster/raycluster.yaml")
    """For a job on Kubernetes: file with the RayCluster whose pods it gets."""


def main(argv: Sequence[str]) -> int:
    """Queue it, to the exit code."""
    return queue_flags.verb(Rerun, argv, "jobs rerun", _queued)


def _queued(flags: Rerun) -> tuple[str, int]:
    queue = queue_flags.queue(flags.state_dir)
    old = queue.job(flags.id)
    again, spec, request = (
        new_id(old.name),
        queue.ledger.document(old.id, "spec"),
        queue.ledger.document(old.id, "request"),
    )
    if old.target["on"] == "kuberay":  # its name is in all its manifests
        from sp500.jobs.kuberay import executor as kuberay

        request = kuberay.request(JobSpec(**spec), ray_cluster(flags.cluster), again)
    kept = {name: getattr(old, name) for name in NewJob.__dataclass_fields__ if hasattr(old, name)}
    queue.add([NewJob(**kept | {"id": again, "spec": spec, "request": request})])
    if flags.json_output:
        return queue_flags.dumped(queue_flags.plain(queue.job(again))), 0
    return f"{again} is queued; follow it: sp500 jobs logs {again} --follow", 0
