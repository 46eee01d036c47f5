"""Events that explain why a job waits or how it ended: those about it that still hold.

A warning stays for an hour, also when what it warned of is over: the quota was raised, the pod found its node. And the
end of a head is in no field of the RayJob: the operator makes a new head, and the RayJob reports what fails later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from sp500.jobs.cluster import reasons
from sp500.jobs.manifests.manifest import Document, items, section

# Warnings that are part of any start.
HARMLESS = {"Unhealthy"}
# Warnings that explain the end of a command that ran; the others are of its start, and over.
LOSSES = {"Evicted", "Preempted", "OOMKilling", "NodeNotReady"}
# Go's text for the end of a container, in the operator's event.
TERMINATED = re.compile(r"ExitCode:(\d+),.*?Reason:(\w+)")


def role(pod: Document) -> str:
    """Return the role of a pod of a job; the operator labels those of a Ray cluster."""
    return str(section(section(pod, "metadata"), "labels").get("ray.io/node-type") or "submitter")


def telling(job: Document, pods: Sequence[Document], events: Sequence[Document], *, ran: bool) -> list[str]:
    """Return the warnings that still hold, one line each. A pod of the job is named by its role."""
    silent = {pod["metadata"]["name"]: pod for pod in pods if not reasons.ready(pod) and not reasons.of_pods([pod])}
    warnings = [event for event in events if event.get("type") == "Warning" and event.get("reason") not in HARMLESS]
    warnings = [event for event in warnings if _is_about(event, job, silent) and not _is_over(event, job, pods, silent)]
    if ran:
        warnings = [event for event in warnings if event.get("reason") in LOSSES]
    lines = reasons.last_warnings(warnings)
    for name, pod in silent.items():
        lines = [line.replace(f"pod {name}: ", f"{role(pod)}: ") for line in lines]
    return list(dict.fromkeys(lines))


def has_lost_head(job: Document, pods: Sequence[Document]) -> bool:
    """Return whether the head on which a command ran is gone or was replaced.

    The operator leaves the RayJob as it is while it cannot ask the head, for minutes.
    """
    began = str(section(section(job, "status"), "rayJobInfo").get("startTime") or "")
    if not (began and pods) or section(job, "metadata").get("deletionTimestamp"):
        return False
    heads = [pod for pod in pods if role(pod) == "head" and not pod["metadata"].get("deletionTimestamp")]
    alive = [head for head in heads if section(head, "status").get("phase") not in {"Failed", "Succeeded"}]
    return all(datetime.fromisoformat(creation_time(head)) > datetime.fromisoformat(began) for head in alive)


def creation_time(pod: Document) -> str:
    """Return the time when the pod was created, RFC 3339."""
    return str(pod["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z")


def head_lost(job: Document, events: Sequence[Document]) -> str:
    """Return how the previous head ended if the operator had to replace it; empty otherwise."""
    ray = cluster(job)
    own = [event for event in events if section(event, "involvedObject").get("name") == ray]
    heads = {str(event.get("message")) for event in own if event.get("reason") == "CreatedHeadPod"}
    if not ray or len(heads) < 2:
        return ""
    ends = [TERMINATED.search(str(event.get("message"))) for event in own if event.get("reason") == "DeletedHeadPod"]
    causes = [f"{end[2]}, exit code {end[1]}" for end in ends if end]
    why = causes[-1] if causes else "its pod was deleted, or its node was lost"
    return f"its head was lost and replaced ({why}), and what ran on it is gone"


def _is_about(event: Document, job: Document, silent: dict[str, Document]) -> bool:
    """Return whether an event is about the job: its RayJob, submitter or cluster, or a pod that says nothing itself.

    A pod that is gone, evicted or refused, is known only by its name.
    """
    subject = section(event, "involvedObject")
    kind, name, ray = subject.get("kind"), str(subject.get("name")), cluster(job)
    if kind in {"RayJob", "Job"}:
        return name == str(job["metadata"]["name"])
    if kind == "RayCluster":
        return bool(ray) and name == ray
    if event.get("reason") in LOSSES and kind == "Pod":
        return bool(ray) and name.startswith(f"{ray}-")
    return name in silent


def _is_over(event: Document, job: Document, pods: Sequence[Document], silent: dict[str, Document]) -> bool:
    """Return whether the problem is solved: the missing object exists, or the pod that had no room has a node."""
    subject, reason = section(event, "involvedObject"), str(event.get("reason"))
    roles = [role(pod) for pod in pods]
    if subject.get("kind") == "Job":
        return "submitter" in roles
    if reason == "FailedToCreateHeadPod":
        return "head" in roles
    if reason == "FailedToCreateWorkerPod":
        return roles.count("worker") >= count_workers(job)
    if reason in {"FailedToCreateRayCluster", "FailedToCreateRayJobSubmitter"}:
        return ("head" if reason.endswith("Cluster") else "submitter") in roles
    if reason == "FailedScheduling" and (pod := silent.get(str(subject.get("name")))):
        return reasons.condition(pod, "PodScheduled").get("status") == "True"
    return False


def count_workers(job: Document) -> int:
    """Return the number of pods in all its groups of workers."""
    groups = items(section(section(job, "spec"), "rayClusterSpec").get("workerGroupSpecs"))
    return sum(int(group.get("replicas") or 0) * int(group.get("numOfHosts") or 1) for group in groups)


def cluster(job: Document) -> str:
    """Return the RayCluster of the job's present start; empty if there is none yet."""
    return str(section(job, "status").get("rayClusterName") or "")
