"""Status of a job from its RayJob, pods and warnings: the operator's words mapped onto ours, in pure functions.

Two fields of the RayJob decide on the state: jobDeploymentStatus, which is the operator's, and jobStatus, which is
Ray's. What keeps a job from starting is in one of four places: the RayJob's own reason (a deadline, a broken rule), the
state of a pod (image, room, claim, memory), a warning about a pod (a volume that does not mount), or a warning about a
controller that was not allowed to create a pod. A submitter that breaks the namespace's pod security leaves only this
warning: the RayJob stays Running without a jobStatus, and no deadline names the cause. For a job in a queue the reason
is in Kueue's Workload. The facts are those of KubeRay 1.7.0.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile

from sp500.errors import LimitExceeded
from sp500.jobs.cluster import reasons
from sp500.jobs.kuberay import job_events
from sp500.jobs.log_lines import last_message
from sp500.jobs.manifests.manifest import Document, section
from sp500.jobs.state import FINAL_CODES, JobState, Replicas, Role, Status

# States of a job that nothing more will happen to, by Ray's word. What fails after that is the operator's tidying up.
ENDS = {"SUCCEEDED": JobState.SUCCEEDED, "FAILED": JobState.FAILED, "STOPPED": JobState.STOPPED}
# Where the operator is done with it, but for tidying up. A word that is not known here is none of these.
OVER = {"Complete", "Failed", "ValidationFailed"}
# Written by Ray's job supervisor (2.60). The exit code of the submitter's pod is that of `ray job logs`: 0 or 1.
EXIT_CODE = re.compile(r"entrypoint command failed with exit code (-?\d+)")
# Causes in one line; of a hundred workers that find no room, the first are enough.
MOST = 3
# A message may be the last 20,000 characters of a log.
LONGEST = 500
# An image that cannot be pulled goes back and forth between two reasons, the second of which repeats the first.
PULLING = re.compile(r'(ErrImagePull|ImagePullBackOff)(: Back-off pulling image "[^"]*": ErrImagePull)?(?=:|$| \()')
# The events of a quota or a rule that lets no pod be made.
REFUSED = re.compile(r": Failed(Create|ToCreate\w+): ")
NO_REASON = "failed, and the operator does not say why"
PENDING = {
    "": "submitted; the KubeRay operator has not picked it up yet (does it run, and watch this namespace?)",
    "Initializing": "its Ray cluster starts",
    "Running": "its Ray cluster is there; the command does not run yet",
}


def state(job: Document) -> JobState:
    """Return the job's state, from its own status only."""
    status = section(job, "status")
    deployment, ray = str(status.get("jobDeploymentStatus", "")), str(status.get("jobStatus", ""))
    if deployment in OVER:
        return ENDS.get(ray, JobState.FAILED)
    if is_suspended(job):
        return JobState.QUEUED if reasons.queue(job) else JobState.PENDING
    return JobState.RUNNING if deployment == "Running" and ray not in {"", "PENDING"} else JobState.PENDING


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
        reason(job, now, pods, events, workload),
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
    if submits(job):
        counts[Role.SUBMITTER] = 1
    up = [role(pod) for pod in pods if reasons.ready(pod)]
    return {each: Replicas(up.count(each), count) for each, count in counts.items()}


def role(pod: Document) -> Role:
    """Return the role of a pod of a job."""
    return Role(job_events.role(pod))


def _placement_time(pod: Document) -> float | None:
    """Return the time when a worker found its node; None for another pod, and for one that has none yet."""
    scheduled = reasons.condition(pod, "PodScheduled")
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


def is_suspended(job: Document) -> bool:
    """Return whether the job is suspended: by Kueue, which sets it from the start, or by a user."""
    deployment = section(job, "status").get("jobDeploymentStatus")
    return deployment in {"Suspending", "Suspended"} or section(job, "spec").get("suspend") is True


def submits(job: Document) -> bool:
    """Return whether a separate pod submits the command."""
    return bool(section(job, "spec").get("submissionMode", "K8sJobMode") == "K8sJobMode")


def reason(
    job: Document, now: JobState, pods: Sequence[Document], events: Sequence[Document], workload: Document | None
) -> str:
    """Return one line with the reason for the state `now`."""
    known = causes(job, now, pods, events)
    if now is JobState.QUEUED:
        return _line(reasons.of_queue(job, workload), known)
    lost = job_events.head_lost(job, events) if now is JobState.FAILED else ""
    text = {
        JobState.PENDING: lambda job: _explain_pending(job, events),
        JobState.RUNNING: _explain_running,
        JobState.SUCCEEDED: lambda job: "the command ended with exit code 0" + _explain_cleanup(job),
        JobState.FAILED: lambda job: _operator_message(section(job, "status")) or NO_REASON,
        JobState.STOPPED: lambda job: "stopped through Ray",
    }[now](job)
    if section(job, "metadata").get("deletionTimestamp"):
        text = f"is being deleted; before that: {text}"
    return _line("; ".join(filter(None, [lost, text])), known)


def causes(job: Document, now: JobState, pods: Sequence[Document], events: Sequence[Document]) -> list[str]:
    """Return what pods and warnings say, each thing once."""
    if now in {JobState.SUCCEEDED, JobState.STOPPED}:
        return []
    ray = section(job, "status").get("jobStatus")
    # The end of a command that failed is its submitter's as well, and says nothing more.
    submitters = [pod for pod in pods if job_events.role(pod) == "submitter"]
    # Of several only the newest counts: it took over from those that ended before.
    gone = submitters if ray == "FAILED" else sorted(submitters, key=job_events.creation_time)[:-1]
    telling = [pod for pod in pods if pod not in gone]
    ran = now is JobState.FAILED and ray not in {None, "", "PENDING"}
    lines = [*_of_pods(telling), *job_events.telling(job, telling, events, ran=ran)]
    # Room may come with the next node. What the API server refuses, it refuses until somebody changes something.
    return sorted(lines, key=lambda line: not REFUSED.search(line))


def _of_pods(pods: Sequence[Document]) -> list[str]:
    """Return why pods are not ready, by role, so that a replaced pod with the same problem changes nothing."""
    counts: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        prefix = f"pod {pod['metadata']['name']}: "
        texts = [PULLING.sub("ImagePullBackOff", line.removeprefix(prefix)) for line in reasons.of_pods([pod])]
        counts.update((job_events.role(pod), reason) for reason in dict.fromkeys(texts))
    return [f"{role if count == 1 else f'{count} {role}s'}: {reason}" for (role, reason), count in counts.items()]


def _explain_pending(job: Document, events: Sequence[Document]) -> str:
    status, spec = section(job, "status"), section(job, "spec")
    deployment = str(status.get("jobDeploymentStatus", ""))
    if is_suspended(job):
        return "suspended: spec.suspend holds it back until it is false again"
    if deployment == "Retrying":
        starts = int(spec.get("backoffLimit") or 0) + 1
        return f"{int(status.get('failed') or 0)} of {starts} starts failed; it starts again on a new cluster"
    if deployment == "Waiting":
        return _explain_interactive(job)
    if status.get("jobStatus") == "RUNNING":
        lost = job_events.head_lost(job, events) or "its head was lost, and what ran on it is gone"
        again = "the operator starts the command again" if submits(job) else "submit the command again"
        return f"{lost}; {again} when the new one is ready"
    if status.get("jobStatus") == "PENDING":
        return "Ray has the command, and has not started it yet"
    return PENDING.get(deployment, f"the operator calls it {deployment}")


def _explain_interactive(job: Document) -> str:
    """Return what a job in InteractiveMode waits for, as commands to copy."""
    name, ray = str(job["metadata"]["name"]), str(section(job, "status").get("rayClusterName"))
    namespace = shlex.quote(str(section(job, "metadata").get("namespace", "default")))
    kubectl, patch = f"kubectl -n {namespace}", json.dumps({"spec": {"jobId": name}}, separators=(",", ":"))
    steps = [
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$({kubectl} get secret {ray} -o jsonpath='{{.data.auth_token}}'"
        " | base64 -d)",
        f"{kubectl} port-forward svc/{ray}-head-svc 8265 &",
        f"ray job submit --address http://127.0.0.1:8265 --no-wait --submission-id {name} --working-dir ."
        f" -- {section(job, 'spec').get('entrypoint')}",
        f"{kubectl} patch rayjob {name} --type merge -p '{patch}'",
    ]
    return "its cluster waits for you to submit the command: " + " ; ".join(steps).replace("& ;", "&")


def _explain_running(job: Document) -> str:
    ray = str(section(job, "status").get("jobStatus"))
    if ray == "RUNNING":
        return "the command runs"
    return f"the command has ended ({ray}); the operator waits for its submitter"


def _explain_cleanup(job: Document) -> str:
    """Return what went wrong after a success."""
    status = section(job, "status")
    return f"; after that: {_operator_message(status)}" if status.get("jobDeploymentStatus") != "Complete" else ""


def _operator_message(status: Document) -> str:
    """Return the operator's reason and message. Of the log that Ray appends, only the last line is kept."""
    message, _, log = re.sub(r",? last available logs[^\n]*", "\0", str(status.get("message") or "")).partition("\0")
    parts = [
        str(status.get("reason") or ""),
        *(" ".join(text.split())[:LONGEST] for text in (message, _last_words(log))),
    ]
    return ": ".join(filter(None, parts))


def _last_words(log: str) -> str:
    """Return the last message of a log; of a usage error's box, the line above its lower edge."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines or not lines[-1].startswith("╰"):
        return last_message(log).strip()
    top = max((at for at, line in enumerate(lines) if line.startswith("╭")), default=-1)
    inside = [line.strip("│ ") for line in lines[top + 1 : -1]]
    return " ".join(takewhile(lambda line: line.strip("─"), inside))


def _line(state: str, known: Sequence[str]) -> str:
    shown = [cause[:LONGEST] for cause in known[:MOST]]
    more = [f"and {len(known) - MOST} more"] if len(known) > MOST else []
    return " ".join("; ".join([state, *shown, *more]).split())
