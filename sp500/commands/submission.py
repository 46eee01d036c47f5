"""From a job and a place to what the queue gets: the target, the request, what it takes, and how long it may last."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sp500.errors import ConfigError
from sp500.jobs import document, local
from sp500.jobs.document import Document, section
from sp500.jobs.job import Job, NewJob
from sp500.jobs.queue import new_id
from sp500.jobs.resources import Resources, of_cluster, of_spec
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState

# Ended jobs of the same name that tell how long the next may last.
REMEMBERED = 5


@dataclass(frozen=True)
class Place:
    """Where jobs are to run."""

    on: str
    cluster: Document
    """The RayCluster whose pods a job on Kubernetes gets; empty elsewhere."""
    context: str | None = None
    """Context of the kubeconfig."""
    address: str | None = None
    """Address of a Ray cluster's dashboard."""

    def target(self, spec: JobSpec) -> Document:
        """Where this job runs, as the queue keeps it."""
        if self.on == "local":
            return {"on": "local"}
        if self.on == "ray":
            return {"on": "ray", "address": self._dashboard(), "token_file": os.environ.get("RAY_AUTH_TOKEN_PATH")}
        namespace = spec.namespace or section(self.cluster, "metadata").get("namespace") or self._own_namespace()
        kubeconfig = os.environ.get("KUBECONFIG")
        return {"on": "kuberay", "namespace": namespace, "context": self.context, "kubeconfig": kubeconfig}

    def _own_namespace(self) -> str:
        """That of the kubeconfig's context, as kubectl takes it."""
        from kubernetes import config

        try:
            contexts, current = config.list_kube_config_contexts()
        except config.ConfigException:  # there is none: inside a pod, or for a dry run
            return "default"
        chosen = next((one for one in contexts if one["name"] == self.context), current)
        return str(chosen["context"].get("namespace") or "default")

    def _dashboard(self) -> str:
        address = self.address or os.environ.get("RAY_ADDRESS", "")
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                f"--address {address or '(none, and no RAY_ADDRESS)'}: expected that of a Ray dashboard, such as "
                "http://127.0.0.1:8265; for a cluster on Kubernetes: kubectl port-forward service/sp500-head-svc 8265"
            )
        return address.rstrip("/")

    def request(self, spec: JobSpec, id: str) -> Document:
        """What the executor will get. Raises ConfigError for what this place cannot do."""
        if self.on == "local":
            return local.request(spec, cwd=Path.cwd(), environment=os.environ, python=sys.executable)
        if self.on == "ray":
            from sp500.jobs import ray_jobs

            return ray_jobs.request(spec, cwd=Path.cwd())
        from sp500.jobs import kuberay

        return kuberay.request(spec, self.cluster, id)


def prepared(spec: JobSpec, place: Place, ended: Sequence[Job]) -> NewJob:
    """The job as the queue takes it. `ended`: earlier jobs, for its duration."""
    id = new_id(spec.name)
    request = place.request(spec, id)
    return NewJob(
        id=id,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        target=place.target(spec),
        request=request,
        project=spec.project,
        priority=spec.priority,
        queued_elsewhere=spec.queue is not None,
        demand=_demand(spec, place.on, request),
        seconds=seconds(spec, place.on, ended)[1],
        hourly=0.0,
        # On Kubernetes the operator starts anew, and keeps the deadline; on this machine the job's supervisor does.
        retries=0 if place.on == "kuberay" else spec.retries,
        deadline=spec.deadline if place.on == "ray" else None,
        notify=spec.notify,
    )


def seconds(spec: JobSpec, on: str, ended: Sequence[Job]) -> tuple[float | None, float | None]:
    """How long the job may last, from and to: as the user thinks, or as the last ones of that name did.

    None where nobody can tell, beside the deadline.
    """
    if spec.expected:
        return spec.expected, spec.expected
    alike = [job for job in ended if (job.name, job.target["on"], job.state) == (spec.name, on, JobState.SUCCEEDED)]
    lasted = [job.ended - job.started for job in alike[-REMEMBERED:] if job.ended and job.started]
    if not lasted:
        return None, spec.deadline
    most = max(lasted)
    return min(lasted), min(most, spec.deadline) if spec.deadline else most


def _demand(spec: JobSpec, on: str, request: Document) -> Resources:
    if on != "kuberay":
        return of_spec(spec)
    clusters = [cluster for one in request["documents"] for cluster in document.clusters(one)]
    return sum(map(of_cluster, clusters), Resources())
