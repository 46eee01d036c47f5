"""Status of a job from its RayJob, pods and warnings: the operator's words mapped onto ours, in pure functions.

Two fields of the RayJob decide: jobDeploymentStatus, which is the operator's, and jobStatus, which is Ray's. They say
a job's state and rarely the reason: that is in its pods and events, and for a job in a queue in Kueue's Workload. The
facts are those of KubeRay 1.7.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from sp500.errors import LimitExceeded
from sp500.jobs.cluster.reasons import queue, ready
from sp500.jobs.kuberay import diagnostics as rayjob_reasons
from sp500.jobs.kuberay import job_events
from sp500.jobs.manifests.manifest import Document, items, section
from sp500.jobs.state import FINAL_CODES, JobState, Replicas, Role, Status

# States of a job that nothing more will happen to, by Ray's word. What fails after that is the operator's tidying up.
ENDS = {"SUCCEEDED": JobState.SUCCEEDED, "FAILED": JobState.FAILED, "STOPPED": JobState.STOPPED}
# Where the operator is done with it, but for tidying up. A word that is not known here is none of these.
OVER = {"Complete", "Failed", "ValidationFailed"}
# Written by Ray's job supervisor (2.60). The exit code of the submitter's pod is that of `ray job logs`: 0 or 1.
EXIT_CODE = re.compile(r"entrypoint command failed with exit code (-?\d+)")


def state(job: Document) -> JobState:
    """Return the job's state, from its own status only."""
    status = section(job, "status")
    deployment, ray = str(status.get("jobDeploymentStatus", "")), str(status.get("jobStatus", ""))
    if deployment in OVER:
        return ENDS.get(ray, JobState.FAILED)
    if rayjob_reasons.is_suspended(job):
        return JobState.QUEUED if queue(job) else JobState.PENDING
    return JobState.RUNNING if deployment == "Running" and ray not in {"", "PENDING"} else JobState.PENDING


def cluster(job: Document) -> str:
    """Return the RayCluster of the job's present start; empty if there is none yet."""
    return str(section(job, "status").get("rayClusterName") or "")


def status(
    job: Document | None,
    *,
    pods: Sequence[Document] = (),
    events: Sequence[Document] = (),
    workload: Document | None = None,
) -> Status:
    """Return the status of a job, from its RayJob and what was looked up about it.

    `pods` are those of its present cluster and of its submitter, `events` warnings of the namespace, `workload` is
    Kueue's. If they were not looked up, the reason says less.
    """
    if job is None:
        return Status(JobState.LOST, "the cluster has no RayJob of it: it was deleted, or never made")
    now, details = state(job), section(job, "status")
    if now is JobState.RUNNING and job_events.has_lost_head(job, pods):
        now = JobState.PENDING
    began, over = _times(details, now)
    failed = int(details.get("failed") or 0)
    return Status(
        now,
        rayjob_reasons.reason(job, now, pods, events, workload),
        exit_code=_exit_code(details, now),
        started=began,
        ended=over,
        placed=min(filter(None, map(_placement_time, pods)), default=None),
        replicas={} if now.finished else replicas(job, pods),
        retryable=_retryable(details, now),
        # The last failure was repeated by nobody.
        failures=max(failed - 1, 0) if now is JobState.FAILED else failed,
    )


def replicas(job: Document, pods: Iterable[Document]) -> dict[Role, Replicas]:
    """Return the ready and wanted pods of each role; no submitter in the modes without one."""
    counts = {Role.HEAD: 1, Role.WORKER: job_events.count_workers(job)}
    if rayjob_reasons.submits(job):
        counts[Role.SUBMITTER] = 1
    up = [role(pod) for pod in pods if ready(pod)]
    return {each: Replicas(up.count(each), count) for each, count in counts.items()}


def role(pod: Document) -> Role:
    """Return the role of a pod of a job."""
    return Role(job_events.role(pod))


def _placement_time(pod: Document) -> float | None:
    """Return the time when a worker found its node; None for another pod, and for one that has none yet."""
    conditions = items(section(pod, "status").get("conditions"))
    scheduled = next((condition for condition in conditions if condition.get("type") == "PodScheduled"), {})
    if role(pod) is not Role.WORKER or scheduled.get("status") != "True":
        return None
    return _seconds(scheduled.get("lastTransitionTime"))


def _retryable(details: Document, now: JobState) -> bool:
    """Return whether another start could end otherwise."""
    final = details.get("reason") == "DeadlineExceeded" or details.get("jobDeploymentStatus") == "ValidationFailed"
    return now is JobState.FAILED and not final and _exit_code(details, now) not in FINAL_CODES


def _exit_code(details: Document, now: JobState) -> int | None:
    if now is JobState.SUCCEEDED:
        return 0
    if now is not JobState.FAILED:
        return None
    if details.get("reason") == "DeadlineExceeded":  # the operator was sooner than the entrypoint's own deadline
        return LimitExceeded.exit_code
    match = EXIT_CODE.search(str(details.get("message") or ""))
    if not match:
        return None
    code = int(match[1])
    return 128 - code if code < 0 else code  # Python's -9 is a shell's 137


def _times(details: Document, now: JobState) -> tuple[float | None, float | None]:
    """Start and end of the command; the operator's own end if Ray never reported one."""
    command = section(details, "rayJobInfo")
    began = _seconds(command.get("startTime")) if now is JobState.RUNNING or now.finished else None
    over = _seconds(command.get("endTime") or details.get("endTime")) if now.finished else None
    return began, over


def _seconds(time: object) -> float | None:
    return datetime.fromisoformat(time).timestamp() if isinstance(time, str) and time else None
