"""A job: an argv and a resource request, in the same words for a laptop, a Ray cluster and Kubernetes.

A job knows no science: its argv is started unchanged, and its findings are in the run records that it writes. So a
retry starts the same argv again. Whether that continues where it stopped is up to the argv: an experiment given
`--name NAME --resume` does, from the storage that all its pods share.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from sp500.jobs import names
from sp500.jobs.fields import (
    Archive,
    Command,
    Environment,
    Image,
    JobName,
    Label,
    Labels,
    Memory,
    ObjectName,
    Positive,
    Priority,
    Retries,
    SecretReferences,
    Taint,
    Url,
    Whole,
)

# Tells an experiment how many workers it trains on, unless a flag or its settings say so.
WORLD_SIZE = "SP500_WORLD_SIZE"
# Tells an experiment which project its runs belong to.
PROJECT, NO_PROJECT = "SP500_PROJECT", "default"
# What only a cluster made for the job can give.
KUBERNETES_ONLY = (
    "mode",
    "image",
    "start_deadline",
    "keep_succeeded",
    "keep_failed",
    "namespace",
    "service_account",
    "pull_secrets",
    "queue",
    "priority_class",
    "node_labels",
    "tolerations",
)


class JobSpec(BaseModel):
    """One job. Every field is checked here, so that its executor can trust it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    argv: Command
    """The command and its arguments; no shell reads them."""
    name: JobName = ""
    """Name of the job. Default: that of the script."""
    workers: Positive = 1
    """Number of equal Ray worker nodes, started together. On this machine: as many shares of its CPUs and memory."""
    cpus: Positive | None = None
    """Whole CPUs of each worker. On Kubernetes: request and limit of its pod. Default: 1; on Kubernetes the limit of
    the cluster's workers."""
    memory: Memory | None = None
    """Memory of each worker, such as 4GiB. On Kubernetes: request and limit of its pod. Default: no limit; on
    Kubernetes that of the cluster's workers."""
    gpus: Whole = 0
    """GPUs of each worker. On Kubernetes its CPUs and memory grow with them, unless they are given."""
    processes_per_node: Positive | None = None
    """Training processes on each worker. Default: its GPUs, or 1. --workers times this is
    $SP500_WORLD_SIZE, the default of --num-workers in train, scale and walk_forward. On this machine only above 1."""
    env: Environment = {}
    """Environment variables of the command; nothing secret."""
    secrets: SecretReferences = {}
    """Secret environment variables, never by value: on Kubernetes from a Secret that exists and a key in it, on this
    machine from the exported variable NAME. Not with --on ray."""
    settings: dict[str, object] = {}
    """Settings of the experiment; the command gets them as a read-only file under --config."""
    retries: Retries = 0
    """Further starts of the same command after a failure; on Kubernetes each on a new cluster."""
    start_deadline: Positive = 600
    """On Kubernetes: seconds until the command has to run: the wait for nodes, images and, in InteractiveMode, for you.
    Lowered to fit --deadline."""
    deadline: Positive | None = None
    """Seconds until the job has to end, the start of its cluster included. Default: no limit. Then SIGTERM, SIGKILL
    after a grace period, exit code 4. On Kubernetes also while this machine is off; the image must contain sp500."""

    project: Label = NO_PROJECT
    """Project whose budget the job is charged to, and the default of its runs' io.project."""
    priority: Priority = 0
    """Place in the queue: higher starts first, and of equal ones the one submitted first."""
    expected: Positive | None = None
    """Your estimate of the run time, in seconds. Default: the range of earlier jobs with this name."""

    notify: Url | None = None
    """Address (http:// or https://) to which each change of the job's state is posted as JSON."""

    mode: Literal["K8sJobMode", "InteractiveMode"] = "K8sJobMode"
    """On Kubernetes. K8sJobMode: a pod submits the command; InteractiveMode: the cluster waits for your
    `ray job submit --working-dir`."""
    image: Image | None = None
    """On Kubernetes: image of head, workers and submitter, with its tag. Default: the cluster's."""
    working_dir: Archive | None = None
    """On a cluster: URI of a zip of the code (https://, s3://, gs://). Default: this folder on a Ray cluster, the code
    in the image on Kubernetes."""
    keep_succeeded: Whole | None = None
    """On Kubernetes: seconds that the head is kept after a success, without workers. Default: 300. With --queue:
    seconds that the whole cluster is kept after any end. Default: 0."""
    keep_failed: Whole = 0
    """On Kubernetes: seconds that the head is kept after a failure, without workers, to look into it."""
    namespace: Label | None = None
    """On Kubernetes: namespace, with the claims in it. Default: the cluster file's, the kubectl context's, or sp500."""
    service_account: ObjectName | None = None
    """On Kubernetes: ServiceAccount of head and workers, for cloud storage without keys. Default: the cluster's."""
    pull_secrets: tuple[ObjectName, ...] = ()
    """On Kubernetes: Secrets to pull the image with. Default: the cluster's."""
    queue: Label | None = None
    """On Kubernetes: LocalQueue of Kueue, which then decides when the job starts."""
    priority_class: ObjectName | None = None
    """On Kubernetes, with --queue: WorkloadPriorityClass of Kueue."""
    node_labels: Labels = {}
    """On Kubernetes: labels of the nodes that workers run on."""
    tolerations: tuple[Taint, ...] = ()
    """On Kubernetes: taints that workers tolerate, KEY[=VALUE]:EFFECT; with GPUs, the taint of GPU nodes is added."""

    @model_validator(mode="before")
    @classmethod
    def _takes_its_name_from_the_command(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("name", "") != "":
            return data
        argv, rest = data.get("argv"), {key: value for key, value in data.items() if key != "name"}
        if isinstance(argv, list | tuple) and argv and all(isinstance(word, str) for word in argv):
            return rest | {"name": names.of_command(argv)}
        return rest  # the argv's own error is reported

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        if both := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{both[0]} is set in both env and secrets; set it in one of them")
        if self.settings and any(word == "--config" or word.startswith("--config=") for word in self.argv):
            raise ValueError("settings: cannot be combined with --config in the command; use one of the two")
        if self.mode == "InteractiveMode" and (self.retries or self.working_dir):
            field = "retries" if self.retries else "working_dir"
            raise ValueError(f"{field}: not in InteractiveMode, where you submit the command yourself; leave it out")
        if self.queue and self.priority:
            raise ValueError("priority: Kueue orders its queue by priority_class; use that instead")
        if self.priority_class and not self.queue:
            raise ValueError("priority_class: requires queue (a Kueue LocalQueue); otherwise use priority")
        if self.queue and self.keep_failed:
            raise ValueError("keep_failed: cannot be combined with queue; use keep_succeeded")
        return self

    @property
    def world_size(self) -> int:
        """Training processes of the whole job."""
        return self.workers * (self.processes_per_node or self.gpus or 1)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its command: the world size, and its own over it."""
        return {WORLD_SIZE: str(self.world_size), **self.labelled}

    @property
    def labelled(self) -> dict[str, str]:
        """Variables of a command that trains on no workers: its project unless that is the default, and its own."""
        return {**({PROJECT: self.project} if self.project != NO_PROJECT else {}), **self.env}

    def command(self, settings_file: str) -> tuple[str, ...]:
        """Return the argv as it is started if `settings_file` holds the settings."""
        return (*self.argv, "--config", settings_file) if self.settings else self.argv
