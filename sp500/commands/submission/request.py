"""From a job and a place to what the queue gets: the target, the request, what it takes, and how long it may last."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sp500.commands.submission import command_words, local_files
from sp500.commands.submission.pricing import Estimator
from sp500.credentials import without_password
from sp500.errors import ConfigError
from sp500.jobs.kuberay import contexts
from sp500.jobs.local import executor as local
from sp500.jobs.manifests.manifest import Document, section
from sp500.jobs.queue.job import NewJob
from sp500.jobs.queue.queue import Queue, new_id
from sp500.jobs.queue.resources import Resources, of_rayjob, of_spec
from sp500.jobs.spec import JobSpec
from sp500.machine.disk import write_atomic
from sp500.machine.ray_token import token_path


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
    tokens: Path = Path("tokens")
    """Folder for tokens of Ray clusters that are given in the environment."""

    def target(self, spec: JobSpec) -> Document:
        """Where this job runs, as the queue keeps it."""
        if self.on == "local":
            return {"on": "local"}
        if self.on == "ray":
            address = self._dashboard()
            return {"on": "ray", "address": address, "token_file": str(self._token_file(address))}
        context, own = contexts.select_context(os.environ, self.context)
        namespace = spec.namespace or section(self.cluster, "metadata").get("namespace") or own
        # Whatever becomes the current context or folder later, the job stays where it is.
        kubeconfig = os.pathsep.join(map(str, contexts.files(os.environ))) or None
        return {"on": "kuberay", "namespace": namespace, "context": context, "kubeconfig": kubeconfig}

    def reach(self, specs: Sequence[JobSpec], queue: Queue) -> None:
        """Check that the cluster takes jobs from us. Raises ResourcesError where it does not, with the way out.

        On Kubernetes the first job for each namespace is sent as a dry run.
        """
        if self.on == "ray":
            from sp500.jobs import executors
            from sp500.jobs.ray import executor as ray

            self.keep_token()
            target = self.target(specs[0])
            if why := ray.insecure(target["address"], executors.read_token(Path(target["token_file"]))):
                print(f"warning: {why}", file=sys.stderr)
            queue.executor(target).status(new_id("nobody"))
            return
        from sp500.jobs.kuberay.executor import KubeRayExecutor

        for spec in {self.target(spec)["namespace"]: spec for spec in reversed(specs)}.values():
            target = self.target(spec)
            executor = KubeRayExecutor(target["namespace"], target["context"], target["kubeconfig"])
            executor.reachable()
            executor.check(self.request(spec, new_id(spec.name)))

    def keep_token(self) -> None:
        """Keep RAY_AUTH_TOKEN, which the manager does not see, in a file that only its owner can read."""
        if self.on == "ray" and (token := os.environ.get("RAY_AUTH_TOKEN")):
            self.tokens.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._token_file(self._dashboard()), token, mode=0o600)

    def _token_file(self, address: str) -> Path:
        if os.environ.get("RAY_AUTH_TOKEN"):
            return self.tokens / hashlib.sha256(address.encode()).hexdigest()[:16]
        return token_path(os.environ, Path.home())

    def _dashboard(self) -> str:
        address = self.address or os.environ.get("RAY_ADDRESS", "")
        try:
            without_password(address)
        except ValueError:
            raise ConfigError(
                "--address (or RAY_ADDRESS) holds a password (://user:password@). Leave it out and set RAY_AUTH_TOKEN"
            ) from None
        if not re.match(r"https?://[^/]", address):
            raise ConfigError(
                f"--address {address or '(none, and no RAY_ADDRESS)'}: expected that of a Ray dashboard, such as "
                "http://127.0.0.1:8265; for a cluster on Kubernetes: kubectl port-forward service/sp500-head-svc 8265"
            )
        return address.rstrip("/")

    def request(self, spec: JobSpec, id: str) -> Document:
        """What the executor will get. Raises ConfigError for what this place cannot do."""
        command_words.check(spec, self.on, os.environ)
        spec = add_world_size(spec, self.on)
        if self.on == "local":
            return local.request(spec, cwd=Path.cwd(), environment=os.environ, python=sys.executable)
        if self.on == "ray":
            from sp500.jobs import working_dir
            from sp500.jobs.ray import executor as ray_jobs

            if spec.working_dir is None:
                working_dir.check(Path.cwd())
            local_files.check_upload_has(spec, Path.cwd())
            return ray_jobs.request(spec, cwd=Path.cwd())
        from sp500.jobs.kuberay import executor as kuberay

        local_files.check_image_has(spec, self.cluster)
        # The queue repeats a failed start: the operator would do so whatever its exit code.
        return kuberay.request(spec.model_copy(update={"retries": 0}), self.cluster, id)


def add_world_size(spec: JobSpec, on: str) -> JobSpec:
    """The job with its world size in its environment, where its command is to train on workers.

    On a cluster that is always so. On this machine one worker is the process itself, without Ray.
    """
    if on == "local" and spec.world_size == 1:
        return spec
    return spec.model_copy(update={"env": spec.environment})


def prepare_job(spec: JobSpec, place: Place, estimator: Estimator) -> NewJob:
    """The job as the queue takes it."""
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
        queued_elsewhere=place.on == "kuberay" and spec.queue is not None,
        demand=_demand(spec, place.on, request),
        seconds=estimator.seconds(spec, place.on)[1],
        hourly=estimator.hourly(spec, place.on, request),
        currency=estimator.currency,
        retries=spec.retries,
        # On Kubernetes the operator enforces the deadline, on this machine the job's supervisor.
        deadline=spec.deadline if place.on == "ray" else None,
        notify=spec.notify,
    )


def _demand(spec: JobSpec, on: str, request: Document) -> Resources:
    if on != "kuberay":
        return of_spec(spec)
    return sum(map(of_rayjob, request["documents"]), Resources())
