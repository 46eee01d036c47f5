"""Jobs as RayJobs on Kubernetes: KubeRay's operator makes a Ray cluster for each, runs the command, repeats failures.

The cluster keeps the truth: a RayJob named as the handle. Every look is a GET of it, and no watch: a watch has to be
held open and, after each break (410, a time-out), be taken up again by that same GET. It takes the rights of the Role
sp500-jobs in cluster/base/rbac.yaml, and no more.

Our RayJobs carry the hash of their request as an annotation. RayJobs without it are ignored: neither reported nor
deleted. The RayJob comes first and owns the ConfigMaps of its settings and files, for which its pods wait
meanwhile; so nothing is left behind, wherever a submit was killed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator

from sp500.errors import ConfigError, Refused, Unreachable
from sp500.jobs.cluster.rollout import OPERATOR
from sp500.jobs.executor import Line
from sp500.jobs.kuberay import status as rayjob_status
from sp500.jobs.kuberay.api import CLAIMS, CONFIG_MAPS, EVENTS, JOBS, PODS, RAYJOBS, READ, WORKLOADS, KubeApi, Resource
from sp500.jobs.kuberay.job_events import cluster, has_lost_head
from sp500.jobs.kuberay.pod_logs import Moment, PodLog, Repetitions
from sp500.jobs.manifests import rules
from sp500.jobs.manifests.manifest import Document, Group, clusters, items, section
from sp500.jobs.manifests.rayjob import build_documents
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState, Role, Status
from sp500.progress import RunProgress

log = logging.getLogger(__name__)

REQUEST, PROGRESS = "sp500/request", "sp500/progress"
SHARED = "cluster/components/shared-storage makes claims that many nodes mount"
SECONDS_BETWEEN_LOOKS = 1.0
# Seconds without an answer after which a follower of logs gives up. An upgrade of a control plane takes minutes, and a
# server that has just started denies all until it has read its rules.
PATIENCE = 600.0


def request(spec: JobSpec, cluster: Document, handle: str, files: bytes = b"") -> Document:
    """Return {"documents": [RayJob, and ConfigMaps of settings and files]}, in the order to send, named as the handle.

    `cluster` is a RayCluster document that passes the rules. A ConfigMap gets its owner, the RayJob's uid, when it is
    sent. Raises ConfigError for a manifest that breaks a rule.
    """
    documents = build_documents(spec.model_copy(update={"name": handle}), cluster, files)
    for document in documents:
        rules.check(document)
    text = json.dumps(sorted(documents, key=lambda document: document["kind"] != "RayJob"))
    mark = {REQUEST: hashlib.sha256(text.encode()).hexdigest()}
    return {
        "documents": [
            document | {"metadata": document["metadata"] | {"annotations": mark}} for document in json.loads(text)
        ]
    }


class KubeRayExecutor:
    """RayJobs in one namespace of one cluster, reached with a kubeconfig or, inside a pod, with its account."""

    def __init__(
        self,
        namespace: str,
        context: str | None = None,
        kubeconfig: str | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        timeout: float = READ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = KubeApi(namespace, context, kubeconfig, pause, timeout)
        self._pause, self._clock = pause, clock

    def reachable(self) -> None:
        """Check that a RayJob can be submitted. Asks once, for seconds at most.

        Raises Unreachable if no server answers, and Refused if it does not know RayJobs.
        """
        kinds = self._api.kinds(RAYJOBS.root) or set()
        if RAYJOBS.plural not in kinds:
            raise Refused(f"this cluster has no KubeRay operator; its administrator can install it with: {OPERATOR}")

    def check(self, request: Document) -> None:
        """Check that the server would accept such a job: one call, and one for each claim that its pods mount.

        Raises Refused with the server's reason, and for a claim that its pods would wait for. Warns of one that only
        the pods of one node can mount, if the job has several workers.
        """
        job = request["documents"][0]
        self._api.create(RAYJOBS, job, dry_run=True)
        narrow = []
        for claim in sorted({name for ray in clusters(job) for group in ray.groups for name in _claims(group)}):
            volume_claim = self._api.get(CLAIMS, claim, may_be_denied=True)
            modes = section(volume_claim or {}, "spec").get("accessModes")
            narrow += [claim] if modes == ["ReadWriteOnce"] else []
            if volume_claim is None:
                raise Refused(
                    f"namespace {self._api.namespace} has no PersistentVolumeClaim {claim}, which the job's pods mount:"
                    " choose another --namespace, or scripts/deploy makes it"
                )
        workers = [group for ray in clusters(job) for group in ray.workers]
        if narrow and any(int(group.body.get("replicas", 0)) > 1 for group in workers):
            log.warning("ReadWriteOnce: workers on a second node would wait for %s. %s", " and ".join(narrow), SHARED)

    def submit(self, handle: str, request: Document) -> None:
        """Create the RayJob, and then what belongs to it; what is there already, of this request, counts as created.

        Raises Refused for what the server will not have, and if the name belongs to another object.
        """
        job, *others = request["documents"]
        namespace = job["metadata"].get("namespace", self._api.namespace)
        if job["metadata"]["name"] != handle or namespace != self._api.namespace:
            expected = f"{self._api.namespace}/{handle}"
            raise Refused(
                f"the request is for {namespace}/{job['metadata']['name']}, not {expected}; submit the job again"
            )
        rayjob = self._create(RAYJOBS, job)
        owner = {key: job[key] for key in ("apiVersion", "kind")} | {"name": handle, "uid": rayjob["metadata"]["uid"]}
        for document in others:
            try:
                self._create(CONFIG_MAPS, document | {"metadata": document["metadata"] | {"ownerReferences": [owner]}})
            except Refused:  # its head would wait for the mount, and hold its nodes
                self._api.delete(RAYJOBS, handle, rayjob["metadata"]["uid"])
                raise

    def status(self, handle: str) -> Status:
        """Return the status.

        It costs one call for a job that succeeded or was stopped, two in Kueue's queue, three while it runs.

        Four while it waits: RayJob, pods of its cluster, pods of its submitter, warnings. Five if it failed or lost
        its head: all events of its cluster too, since how a head ended is not a warning.
        """
        job = self._own(handle)
        now = rayjob_status.state(job) if job else JobState.LOST
        if job is None or now in {JobState.SUCCEEDED, JobState.STOPPED}:
            return rayjob_status.status(job)
        if now is JobState.QUEUED:
            labels = f"kueue.x-k8s.io/job-uid={job['metadata']['uid']}"
            return rayjob_status.status(
                job, workload=next(iter(self._api.items_if_any(WORKLOADS, labels=labels)), None)
            )
        pods, ray = self._pods(job, None), cluster(job)
        lost = now is JobState.RUNNING and has_lost_head(job, pods)
        # One call for all warnings: by name it would be one for each pod, and none for those that were never made.
        events = [] if now is JobState.RUNNING and not lost else self._api.items(EVENTS, fields="type=Warning")
        if (lost or now is JobState.FAILED) and ray:
            own = self._api.items(EVENTS, fields=f"involvedObject.kind=RayCluster,involvedObject.name={ray}")
            events += [event for event in own if event.get("type") != "Warning"]
        return rayjob_status.status(job, pods=pods, events=events)

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Yield lines of the pods' first containers, which are Ray's and the submitter's. Deleted pods have none.

        What the command prints is the submitter's. In InteractiveMode there is none, and it raises ConfigError.
        """
        return self._lines(handle, role, tail, follow)

    def stop(self, handle: str) -> None:
        """Delete the RayJob, and with it its cluster and logs; one that has ended keeps what its pods printed.

        Of one that failed goes a submitter that did not end: once the cluster is deleted, its pod waits for ever for
        the Secret with the cluster's token, on a node and in the quota.
        """
        job = self._own(handle)
        now = rayjob_status.state(job) if job else JobState.LOST
        if job and not now.finished:
            self._api.delete(RAYJOBS, handle, job["metadata"]["uid"])
        if job and now is JobState.FAILED and (submitter := self._api.get(JOBS, handle)):
            owned = _owner(submitter) == job["metadata"]["uid"]
            ends = items(section(submitter, "status").get("conditions"))
            if owned and not any(end.get("type") in {"Complete", "Failed"} for end in ends):
                self._api.delete(JOBS, handle, submitter["metadata"]["uid"])

    def delete(self, handle: str) -> None:
        """Delete the RayJob; cluster, submitter and settings are its own and go with it."""
        if job := self._own(handle):
            self._api.delete(RAYJOBS, handle, job["metadata"]["uid"])

    def show_progress(self, handle: str, progress: RunProgress) -> None:
        """Write the progress into the annotation sp500/progress of the RayJob, if it changed."""
        job = self._own(handle)
        if job and section(job["metadata"], "annotations").get(PROGRESS) != progress.dump():
            self._api.annotate(RAYJOBS, handle, job["metadata"]["uid"], {PROGRESS: progress.dump()})

    def _own(self, handle: str) -> Document | None:
        """Return the RayJob of a handle. None if there is none, or if it is not ours."""
        job = self._api.get(RAYJOBS, handle)
        return job if job and _mark(job) else None

    def _create(self, resource: Resource, body: Document) -> Document:
        name, where = body["metadata"]["name"], f"namespace {self._api.namespace}"
        created = self._api.create(resource, body) or self._api.get(resource, name)
        if created is None:
            raise Unreachable(f"{body['kind']} {name} in {where} was deleted while it was being read; try again")
        if _mark(created) != _mark(body):
            raise Refused(f"{where} has another {body['kind']} {name}, which was left as it is; choose another name")
        return created

    def _pods(self, job: Document, role: Role | None) -> list[Document]:
        """Return the pods of the present cluster and of the submitter."""
        pods, ray = list[Document](), cluster(job)
        if ray and role is not Role.SUBMITTER:
            selector = f",ray.io/node-type={role}" if role else ""
            pods += self._api.items(PODS, labels=f"ray.io/cluster={ray}{selector}")
        if role in {None, Role.SUBMITTER} and rayjob_status.submits(job):
            pods += self._api.items(PODS, labels=f"batch.kubernetes.io/job-name={job['metadata']['name']}")
        return pods

    def _lines(self, handle: str, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Look after look, the last of them after the job's end was seen; a server that goes away is waited for."""
        reading, job, answered, is_away = Reading(tail), None, -math.inf, False
        while True:
            try:
                current = self._own(handle)
                job = current or job  # a deleted job's pods take their time
                if job and role is Role.SUBMITTER and not rayjob_status.submits(job):
                    raise ConfigError(
                        "role submitter: you submit this job's command yourself; `ray job logs` has what it prints"
                    )
                last = not follow or current is None or rayjob_status.state(current).finished
                yield from self._look(reading, self._pods(job, role) if job else [], last=last)
                if last:
                    return
                reading.tail = None  # of a pod that comes later, every line is new
                answered, is_away = self._clock(), False
            except Unreachable as error:
                if self._clock() - answered > PATIENCE:
                    raise
                if not is_away:
                    log.warning("waiting for up to %.0f minutes: %s", PATIENCE / 60, error)
                is_away = True
            self._pause(SECONDS_BETWEEN_LOOKS)

    def _look(self, reading: Reading, pods: list[Document], *, last: bool) -> Iterator[Line]:
        """Yield new lines of all pods by their time. A silent node is asked again, except the last time."""
        timed, silent = list[tuple[Moment, Line]](), None
        for pod in pods:
            name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
            pod_log = reading.log(pod, container)
            try:
                read = self._api.log(name, container, since=pod_log.since, tail=pod_log.tail, patient=last)
            except Unreachable as error:
                silent = error
                continue
            timed += pod_log.new(read or b"", complete=last)
        owners = {pod["metadata"]["name"]: _owner(pod) for pod in pods}
        for _, line in sorted(timed, key=lambda pair: pair[0]):
            if line.role is not Role.SUBMITTER or reading.repetitions.is_new(owners[line.source], line):
                yield line
        if silent and last:
            raise silent


class Reading:
    """Position in the logs of a job's pods."""

    def __init__(self, tail: int | None) -> None:
        self.tail, self.repetitions = tail, Repetitions()
        self._logs: dict[str, PodLog] = {}

    def log(self, pod: Document, container: str) -> PodLog:
        """Return the log of a pod's container."""
        name = pod["metadata"]["name"]
        return self._logs.setdefault(name, PodLog(rayjob_status.role(pod), name, container, self.tail))


def _owner(document: Document) -> str:
    """Return the uid of the object that created this one. A pod has another one for each start of the job."""
    return str(next(iter(items(document["metadata"].get("ownerReferences"))), {}).get("uid", ""))


def _claims(group: Group) -> list[str]:
    """Return the names of the claims that the pods of a group mount."""
    volumes = [section(volume, "persistentVolumeClaim") for volume in items(group.pod.get("volumes"))]
    return [str(claim["claimName"]) for claim in volumes if "claimName" in claim]


def _mark(document: Document) -> str:
    return str(section(document["metadata"], "annotations").get(REQUEST, ""))
