"""Why a RayJob is where it is: one line that names the image, the node's lack, the claim, the quota, the missing right.

What keeps a job from starting is told in one of four places: the RayJob's own reason (a deadline, a broken rule), the
state of a pod (image, room, claim, memory), a warning about a pod (a volume that does not mount), or a warning about
whatever should have made a pod and was forbidden to. The last is all there is where the submitter breaks the
namespace's pod security: the RayJob stays Running without a jobStatus, and no deadline names the cause.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from sp500.jobs.cluster import reasons
from sp500.jobs.document import Document, items, section
from sp500.jobs.manifest import QUEUE
from sp500.jobs.state import JobState

# Causes in one line; of a hundred workers that find no room, the first tell it.
MOST = 3
# A message may be the last 20,000 characters of a log.
LONGEST = 500
# Warnings that are part of any start.
HARMLESS = {"Unhealthy"}
# Warnings that explain the end of a command that ran; the others are of its start, and over.
LOSSES = {"Evicted", "Preempted", "OOMKilling", "NodeNotReady"}
PENDING = {
    "": "handed over; the KubeRay operator has not taken it up yet (does it run, and watch this namespace?)",
    "Initializing": "its Ray cluster starts",
    "Running": "its Ray cluster is there; the command does not run yet",
}


def suspended(job: Document) -> bool:
    """Whether it holds no pods because somebody said so: Kueue, which sets it from the first, or a person."""
    deployment = section(job, "status").get("jobDeploymentStatus")
    return deployment in {"Suspending", "Suspended"} or section(job, "spec").get("suspend") is True


def queue(job: Document) -> str:
    """Kueue's LocalQueue that holds the job; empty for none."""
    return str(section(section(job, "metadata"), "labels").get(QUEUE, ""))


def reason(
    job: Document, now: JobState, pods: Sequence[Document], events: Sequence[Document], workload: Document | None
) -> str:
    """One line for a job in the state `now`."""
    known = causes(job, now, pods, events)
    if now is JobState.QUEUED:
        return _line(_queued(job, workload), known)
    said = {
        JobState.PENDING: _pending,
        JobState.RUNNING: _running,
        JobState.SUCCEEDED: lambda job: "the command ended with exit code 0" + _afterwards(job),
        JobState.FAILED: _failed,
        JobState.STOPPED: lambda job: "stopped through Ray",
    }[now](job)
    if section(job, "metadata").get("deletionTimestamp"):
        said = f"is being deleted; before that: {said}"
    return _line(said, known)


def causes(job: Document, now: JobState, pods: Sequence[Document], events: Sequence[Document]) -> list[str]:
    """What pods and warnings tell, each thing once."""
    if now in {JobState.SUCCEEDED, JobState.STOPPED}:
        return []
    ran = section(job, "status").get("jobStatus") == "FAILED"
    # The end of a command that failed is its submitter's as well, and tells nothing more.
    telling = [pod for pod in pods if not ran or "ray.io/node-type" in section(pod["metadata"], "labels")]
    of_pods = reasons.of_pods(telling)
    silent = [pod["metadata"]["name"] for pod in telling if not reasons.ready(pod) and not reasons.of_pods([pod])]
    about = [one for one in events if _about(one, job, silent) and one.get("reason") not in HARMLESS]
    if ran:
        about = [one for one in about if one.get("reason") in LOSSES]
    warnings = reasons.of_events(about, [str(section(one, "involvedObject").get("name")) for one in about])
    return [*of_pods, *warnings]


def _about(event: Document, job: Document, silent: Sequence[str]) -> bool:
    """Whether an event tells of the job: of the RayJob, its submitter, its cluster, or a pod that says nothing itself.

    A pod that is gone, evicted or refused, is known by its name alone.
    """
    whom = section(event, "involvedObject")
    kind, name, of_job = whom.get("kind"), str(whom.get("name")), str(job["metadata"]["name"])
    ray = str(section(job, "status").get("rayClusterName") or "")
    if kind in {"RayJob", "Job"}:
        return name == of_job
    if kind == "RayCluster":
        return bool(ray) and name == ray
    if event.get("reason") in LOSSES and kind == "Pod":
        return bool(ray) and name.startswith(f"{ray}-")
    return name in silent


def _queued(job: Document, workload: Document | None) -> str:
    conditions = items(section(workload or {}, "status").get("conditions"))
    false = {str(one.get("type")): one for one in conditions if one.get("status") == "False"}
    for kind in ("QuotaReserved", "Admitted"):
        if why := section(false, kind).get("message"):
            return f"held by Kueue in queue {queue(job)}: {why}"
    seen = (
        "it has not said why" if workload else "no Workload to read why (does the queue exist? may you list workloads?)"
    )
    return f"held by Kueue in queue {queue(job)}; {seen}"


def _pending(job: Document) -> str:
    status, spec = section(job, "status"), section(job, "spec")
    deployment = str(status.get("jobDeploymentStatus", ""))
    if suspended(job):
        return "suspended by somebody: spec.suspend holds it back until it is false again"
    if deployment == "Retrying":
        starts = int(spec.get("backoffLimit") or 0) + 1
        return f"{int(status.get('failed') or 0)} of {starts} starts failed; it starts again on a new cluster"
    if deployment == "Waiting":
        return _yours(job)
    if status.get("jobStatus") == "PENDING":
        return "Ray has the command, and has not started it yet"
    return PENDING.get(deployment, f"the operator calls it {deployment}")


def _yours(job: Document) -> str:
    """What a job in InteractiveMode waits for, in commands to copy."""
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


def _running(job: Document) -> str:
    ray = str(section(job, "status").get("jobStatus"))
    if ray == "RUNNING":
        return "the command runs"
    return f"the command has ended ({ray}); the operator waits for its submitter"


def _afterwards(job: Document) -> str:
    """What went wrong after a success."""
    told = section(job, "status")
    return f"; after that: {_said(told)}" if told.get("jobDeploymentStatus") != "Complete" else ""


def _failed(job: Document) -> str:
    return _said(section(job, "status")) or "failed, and the operator does not say why"


def _said(told: Document) -> str:
    """The operator's reason and message; of the log that Ray appends to it the last line, such as a traceback's end."""
    message, _, log = re.sub(r",? last available logs[^\n]*", "\0", str(told.get("message") or "")).partition("\0")
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    known = [str(told.get("reason") or ""), *(" ".join(text.split())[:LONGEST] for text in (message, last))]
    return ": ".join(filter(None, known))


def _line(said: str, known: Sequence[str]) -> str:
    told = [cause[:LONGEST] for cause in known[:MOST]]
    more = [f"and {len(known) - MOST} more"] if len(known) > MOST else []
    return " ".join("; ".join([said, *told, *more]).split())
