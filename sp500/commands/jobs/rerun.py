"""`sp500 jobs rerun`: the same job once more, under a new id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from sp500.commands.jobs import queue_flags
from sp500.commands.submission.render import ray_cluster
from sp500.jobs.queue.job import NewJob, Order
from sp500.jobs.queue.queue import new_id
from sp500.jobs.spec import JobSpec


class Rerun(queue_flags.OneJob):
    """Queue a job again, as it was: command, settings, folder, environment and place."""

    cluster: Path = Path("cluster/raycluster.yaml")
    """For a job on Kubernetes: file with the RayCluster whose pods it gets."""


def main(argv: Sequence[str]) -> int:
    """Queue the job and return the exit code."""
    return queue_flags.run_verb(Rerun, argv, "jobs rerun", _rerun)


def _rerun(flags: Rerun) -> tuple[str, int]:
    queue = queue_flags.queue(flags.state_dir)
    old = queue.job(flags.id)
    again, spec = new_id(old.name), queue.ledger.document(old.id, "spec")
    if old.target["on"] == "kuberay":  # its name is in all its manifests
        from sp500.jobs.kuberay import executor as kuberay

        request = kuberay.request(JobSpec(**spec | {"retries": 0}), ray_cluster(flags.cluster), again)
    else:
        request = queue.ledger.document(old.id, "request")
    order = {field.name: getattr(old, field.name) for field in fields(Order)}
    queue.add([NewJob(**order | {"id": again}, spec=spec, request=request)])
    if flags.json_output:
        return queue_flags.dump_json(queue_flags.plain(queue.job(again))), 0
    return f"{again} is queued; follow it: sp500 jobs logs {again} --follow", 0
