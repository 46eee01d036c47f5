"""KubeRay's operator, scheduler, kubelet and Ray in front of the store, one documented step at a time.

The steps are the operator's own transitions (KubeRay 1.7.0): Initializing, Running with an empty jobStatus while the
submitter is at work, Running/RUNNING, and one of the ends. A test calls them in the order of its story; an `Autopilot`
takes the next one at each look that somebody takes at the RayJob.
"""

import secrets
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kube_store import Document, KubeStore, Refusal, stamp

IMAGE = "registry.example/sp500:1"


class Operator:
    """What happens to one RayJob."""

    def __init__(self, store: KubeStore, name: str) -> None:
        self.store, self.name, self.attempt, self.replaced, self.heads = store, name, 0, 0, 0

    @property
    def cluster(self) -> str:
        """The RayCluster of the present start."""
        return f"{self.name}-{'abcdefgh'[self.attempt] * 5}"

    @property
    def head(self) -> str:
        return f"{self.cluster}-head-xk2l{'pqrst'[self.heads]}"

    @property
    def workers(self) -> list[str]:
        groups = self.job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        return [f"{self.cluster}-worker-{number:05}" for number in range(sum(one["replicas"] for one in groups))]

    @property
    def submitter(self) -> str:
        return f"{self.name}-{'mnopqrst'[self.attempt] * 4}{'mnopqrst'[self.replaced]}"

    @property
    def job(self) -> Document:
        return self.store.get("rayjobs", self.name)

    def tell(self, **status: Any) -> None:
        """Change the RayJob's status."""
        self.store.set("rayjobs", self.name, **status)

    def initialize(self) -> None:
        """A RayCluster and its pods, none of which run."""
        self.tell(
            jobDeploymentStatus="Initializing",
            jobStatus="",
            rayClusterName=self.cluster,
            jobId=f"{self.name}-id",
            startTime=stamp(),
        )
        self.store.put("rayclusters", {"metadata": self._owned(self.cluster, self.job), "spec": {}})
        owner = self.store.get("rayclusters", self.cluster)
        for name, kind in [(self.head, "head"), *((one, "worker") for one in self.workers)]:
            labels = {"ray.io/cluster": self.cluster, "ray.io/node-type": kind}
            self._pod(name, self._owned(name, owner, labels), f"ray-{kind}")
        self._created_head()

    def start_pods(self) -> None:
        """Head and workers get ready."""
        for name in [self.head, *self.workers]:
            self.ready(name)

    def submit(self) -> None:
        """The submitter's Job, and its pod where the namespace lets it."""
        self.tell(jobDeploymentStatus="Running", jobStatus="")
        self.store.put("jobs", {"metadata": self._owned(self.name, self.job), "spec": {}})

    def start_submitter(self) -> None:
        """Its pod runs."""
        labels = {"batch.kubernetes.io/job-name": self.name, "job-name": self.name}
        owned = self._owned(self.submitter, self.store.get("jobs", self.name), labels)
        self._pod(self.submitter, owned, "ray-job-submitter")
        self.ready(self.submitter)

    def replace_submitter(self, *, keep: bool = False) -> None:
        """Its pod ends, and the Job makes another, which reads the log of the command from its beginning.

        `keep`: it ended by itself, and its pod stays; else somebody deleted it.
        """
        if keep:
            self.container(self.submitter, {"terminated": {"exitCode": 1, "reason": "Error"}})
        else:
            self.store.delete("pods", self.submitter)
        self.replaced += 1
        self.start_submitter()

    def run(self) -> None:
        """Ray starts the command."""
        self.tell(jobStatus="RUNNING", rayJobInfo={"startTime": stamp()})

    def to_running(self) -> None:
        """All steps until the command runs."""
        for step in (self.initialize, self.start_pods, self.submit, self.start_submitter, self.run):
            step()

    def succeed(self) -> None:
        """The command ends with 0, and the submitter after it."""
        self._end("SUCCEEDED", "Complete")

    def fail(self, code: int, log: str = "Traceback\nValueError: no such ticker") -> None:
        """The command ends with another exit code, for the last time."""
        said = "last available logs (truncated to 20,000 chars)"
        message = f"Job entrypoint command failed with exit code {code}, {said}:\n{log}"
        failed = self.job["status"].get("failed", 0) + 1
        self._end("FAILED", "Failed", message=message, reason="AppFailed", failed=failed)

    def retry(self) -> None:
        """The operator counts a failure, deletes cluster and submitter, and begins again."""
        self.tell(jobDeploymentStatus="Retrying", failed=self.job["status"].get("failed", 0) + 1)
        self.store.delete("rayclusters", self.cluster)
        self.store.delete("jobs", self.name)
        self.store.collect()
        self.attempt += 1

    def end(self, reason: str, message: str = "", deployment: str = "Failed") -> None:
        """The operator gives up, whatever Ray says."""
        self.tell(jobDeploymentStatus=deployment, reason=reason, message=message, endTime=stamp(), failed=1)

    def tidy(self, seconds: float = 0) -> None:
        """What the operator deletes so many seconds after the end: of the due rules, the one that deletes most.

        DeleteWorkers suspends the groups of workers, after which their pods go; DeleteCluster takes all pods of Ray.
        The submitter's Job and its pod stay (rayjob_controller.go, handleDeletionRules).
        """
        spec, status = self.job["spec"], self.job["status"]
        rules = spec.get("deletionStrategy", {}).get("deletionRules", [])
        ours = [rule for rule in rules if _matches(rule["condition"], status)]
        due = [rule["policy"] for rule in ours if rule["condition"].get("ttlSeconds", 0) <= seconds]
        if spec.get("shutdownAfterJobFinishes") and spec.get("ttlSecondsAfterFinished", 0) <= seconds:
            due.append("DeleteCluster")
        if "DeleteCluster" in due:
            self.store.delete("rayclusters", self.cluster)
            self.store.collect()
        elif "DeleteWorkers" in due:
            for name in self.workers:
                self.store.delete("pods", name)

    def pods(self) -> list[str]:
        """Roles of the pods that are there."""
        found = [
            one["spec"]["containers"][0]["name"] for (kind, _), one in self.store.objects.items() if kind == "pods"
        ]
        return sorted(name.removeprefix("ray-").removeprefix("job-") for name in found)

    def ready(self, name: str) -> None:
        """A pod's containers run."""
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp()}
        conditions = [scheduled, {"type": "Ready", "status": "True"}]
        self.store.set("pods", name, phase="Running", conditions=conditions)
        self.store.logs.setdefault(name, [])

    def unschedulable(self, name: str, message: str) -> None:
        """No node takes the pod."""
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.store.set("pods", name, conditions=[why])

    def container(self, name: str, state: Document, **more: Any) -> None:
        """State of a pod's container; the pod is not ready with it."""
        container = self.store.get("pods", name)["spec"]["containers"][0]
        now = {"name": container["name"], "image": container["image"], "state": state}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp()}
        conditions = [scheduled, {"type": "Ready", "status": "False"}]
        self.store.set("pods", name, containerStatuses=[now], conditions=conditions, **more)

    def replace_head(self, *, crashed: bool) -> None:
        """The pod of the head ends, by itself or deleted by somebody, and the operator makes another."""
        if crashed:
            why = "&ContainerStateTerminated{ExitCode:137,Signal:0,Reason:OOMKilled,Message:,}"
            message = f"Deleted head Pod sp500/{self.head}; Pod status: Failed; Ray container terminated status: {why}"
            self.warn("RayCluster", self.cluster, "DeletedHeadPod", message, kind_of="Normal")
        labels = {"ray.io/cluster": self.cluster, "ray.io/node-type": "head"}
        self.store.delete("pods", self.head)
        self.heads += 1
        self._pod(self.head, self._owned(self.head, self.store.get("rayclusters", self.cluster), labels), "ray-head")
        self._created_head()
        self.ready(self.head)
        self.store.delete("pods", self.submitter)

    def _created_head(self) -> None:
        self.warn("RayCluster", self.cluster, "CreatedHeadPod", f"Created head Pod sp500/{self.head}", kind_of="Normal")

    def warn(self, kind: str, name: str, reason: str, message: str, kind_of: str = "Warning") -> None:
        """An event about an object, which may be gone."""
        body = {
            "metadata": {"name": f"{name}.{secrets.token_hex(4)}"},
            "type": kind_of,
            "reason": reason,
            "message": message,
            "lastTimestamp": stamp(),
            "involvedObject": {"kind": kind, "name": name, "namespace": self.store.namespace},
        }
        self.store.put("events", body)

    def say(self, pod: str, *texts: str, moment: datetime | None = None) -> None:
        """Lines of a pod's log, with the time to the nanosecond."""
        with self.store.lock:
            for text in texts:
                when = moment or datetime.now(UTC)
                self.store.logs[pod].append((f"{when:%Y-%m-%dT%H:%M:%S.%f}000Z", f"{text}\n"))

    def _end(self, ray: str, deployment: str, **more: Any) -> None:
        info = self.job["status"]["rayJobInfo"] | {"endTime": stamp()}
        self.tell(jobStatus=ray, jobDeploymentStatus=deployment, endTime=stamp(), rayJobInfo=info, **more)

    def _owned(self, name: str, owner: Document, labels: Document | None = None) -> Document:
        by = {"kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        return {"name": name, "labels": labels or {}, "ownerReferences": [by]}

    def _pod(self, name: str, metadata: Document, container: str) -> None:
        spec = {"containers": [{"name": container, "image": IMAGE}]}
        self.store.put("pods", {"metadata": metadata, "spec": spec})


def _matches(condition: Document, status: Document) -> bool:
    """Whether a rule is about such an end."""
    return all(condition[key] == status.get(key) for key in ("jobStatus", "jobDeploymentStatus") if key in condition)


class Autopilot:
    """Takes each RayJob a step further whenever somebody looks at it, and runs its command.

    Commands are `job.py succeed | fail | endless | held`; a held one goes on once `released`.
    """

    def __init__(self, store: KubeStore, lines: list[str]) -> None:
        self.store, self.lines, self.released = store, lines, False
        self.starts: dict[str, int] = {}
        self._steps: dict[str, list[Callable[[], None]]] = {}
        store.looked = self.look

    def look(self, name: str) -> None:
        """The next step of one RayJob."""
        try:
            job = self.store.get("rayjobs", name)
        except Refusal:
            return
        operator = Operator(self.store, name)
        if job["metadata"].get("deletionTimestamp"):
            self._steps.setdefault(f"end of {name}", [lambda: None, self.store.collect])
            self._steps[f"end of {name}"].pop(0)()
            return
        steps = self._steps.setdefault(job["metadata"]["uid"], self._story(operator))
        if steps and steps[0]() is None:
            steps.pop(0)

    def _story(self, operator: Operator) -> list[Callable[[], Any]]:
        command = shlex.split(operator.job["spec"]["entrypoint"])[1]
        starting = [operator.initialize, operator.start_pods, operator.submit, operator.start_submitter]
        first, rest = self.lines[:1], self.lines[1:]

        def begin() -> None:
            self.starts[operator.name] = self.starts.get(operator.name, 0) + 1
            operator.run()
            operator.say(operator.submitter, *([] if command == "fail" else first))

        def go_on() -> Any:
            if command == "endless" or (command == "held" and not self.released):
                return "not yet"
            operator.say(operator.submitter, *([] if command == "fail" else rest))
            return operator.fail(3) if command == "fail" else operator.succeed()

        return [lambda: None, *starting, begin, lambda: None, go_on]
