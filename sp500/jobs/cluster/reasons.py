"""Reasons that pods are not ready, in the cluster's own words: what `kubectl wait` leaves out.

For a pod the reason is in one of three places: the condition PodScheduled (no node has room, a claim does not bind),
the state of a container (the image is not pulled, the process was killed), or an event (a volume does not mount). If
there is no pod at all, the conditions and events of its owner say why it was refused (quota, pod security).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sp500.jobs.manifests.manifest import Document, items, section
from sp500.jobs.manifests.rayjob import QUEUE

# Words of a container that is on its way.
COMING = {"ContainerCreating", "PodInitializing"}
# What comes before the API server's reason for a refusal: names of the object, which the event is about already.
REFUSED = re.compile(r"^(Failed to create|Error creating)\b.*? is forbidden: ")


def ready(pod: Document) -> bool:
    """Return whether Kubernetes calls the pod ready."""
    return condition(pod, "Ready").get("status") == "True"


def of_pods(pods: Iterable[Document]) -> list[str]:
    """Return one line for each thing that keeps a pod from being ready."""
    return [f"pod {pod['metadata']['name']}: {reason}" for pod in pods if not ready(pod) for reason in _reasons(pod)]


def queue(document: Document) -> str:
    """Return Kueue's LocalQueue that decides when a job or a cluster starts; empty if none does."""
    return str(section(section(document, "metadata"), "labels").get(QUEUE, ""))


def of_queue(document: Document, workload: Document | None) -> str:
    """Return the reason that Kueue holds a job or a cluster, from its Workload."""
    conditions = items(section(workload or {}, "status").get("conditions"))
    false = {str(condition.get("type")): condition for condition in conditions if condition.get("status") == "False"}
    for kind in ("QuotaReserved", "Admitted"):
        if why := section(false, kind).get("message"):
            return f"held by Kueue in queue {queue(document)}: {why}"
    unknown = (
        "it gives no reason" if workload else "no Workload to read why (does the queue exist? may you list workloads?)"
    )
    return f"held by Kueue in queue {queue(document)}; {unknown}"


def of_conditions(cluster: Document) -> list[str]:
    """Return why the operator creates no pods for a RayCluster: it failed to, or the cluster is suspended."""
    name = cluster.get("metadata", {}).get("name")
    wrong = {"ReplicaFailure": "the operator cannot create the pods", "RayClusterSuspended": "is suspended"}
    return [
        f"raycluster {name}: {wrong[condition['type']]}: {_format_reason(condition)}"
        for condition in cluster.get("status", {}).get("conditions", [])
        if condition["type"] in wrong and condition["status"] == "True"
    ]


def of_events(events: Sequence[Document], subjects: Iterable[Document]) -> list[str]:
    """Return the last warning of each kind about exactly these objects, oldest first.

    An event outlives its object by an hour, and another object of that name may be there by then.
    """
    uids = {document["metadata"].get("uid") for document in subjects if document}
    return last_warnings([event for event in events if event.get("involvedObject", {}).get("uid") in uids])


def last_warnings(events: Sequence[Document]) -> list[str]:
    """Return the last warning of each kind about each object, oldest first."""
    last: dict[tuple[str, str], str] = {}
    for event in sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")):
        involved = event.get("involvedObject", {})
        if event.get("type") == "Warning":
            subject = f"{str(involved.get('kind')).lower()} {involved['name']}"
            message = REFUSED.sub("", str(event.get("message")))
            last[subject, str(event.get("reason"))] = f"{subject}: {event.get('reason')}: {message}"
    return list(last.values())


def condition(pod: Document, kind: str) -> Document:
    """Return a pod's condition of that type; empty if it has none."""
    conditions = items(section(pod, "status").get("conditions"))
    return next((each for each in conditions if each.get("type") == kind), {})


def _reasons(pod: Document) -> Iterator[str]:
    status = pod.get("status", {})
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield _format_reason(scheduled)
    if status.get("reason"):  # of the pod as a whole: Evicted, DeadlineExceeded
        yield _format_reason(status)
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = container.get("state", {}).get("waiting", {})
        terminated = (
            container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
        )
        if waiting and waiting.get("reason") not in COMING:
            yield f"container {container['name']} waits: {_format_reason(waiting)}{_image(container, waiting)}"
        if code := terminated.get("exitCode"):
            yield f"container {container['name']} ended: {_format_reason(terminated)} (exit code {code})"


def _image(container: Document, waiting: Document) -> str:
    """Return the image, for a reason that is about it and whose message does not name it."""
    image = str(container.get("image", ""))
    is_named = "Image" not in str(waiting.get("reason")) or image in str(waiting.get("message", ""))
    return "" if is_named else f" ({image})"


def _format_reason(state: Document) -> str:
    return ": ".join(str(state[key]) for key in ("reason", "message") if state.get(key))
