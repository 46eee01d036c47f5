"""A job as what Kubernetes gets: a RayJob, and ConfigMaps with its settings and with files of this machine.

One truth for pods: the RayJob's cluster is that of the RayCluster document, changed by what the job asks for. It has no
autoscaler and one worker group, since the workers of a job start together and stay.
"""

from __future__ import annotations

import base64
import shlex

import yaml

from sp500.jobs import deadline
from sp500.jobs.manifests.manifest import Cluster, Document, field_text, section
from sp500.jobs.manifests.pods import (
    FILES_ARCHIVE,
    FILES_FOLDER,
    SETTINGS_FILE,
    SETTINGS_FOLDER,
    files_map,
    literal,
    mount_files,
    ray_cluster,
    settings_map,
    submitter,
)
from sp500.jobs.spec import JobSpec

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
# Seconds that the head is kept after a success, for a look at the dashboard.
KEEP_SUCCEEDED = 300
# Seconds after a job's deadline at which the operator ends what did not end itself: the command's grace is in them.
BACKSTOP = int(2 * deadline.GRACE_SECONDS)


def build_documents(spec: JobSpec, cluster: Document, files: bytes = b"") -> list[Document]:
    """Return what to send, in order. `cluster` is a RayCluster document that passes the rules.

    `files`: zip of the folder in which the command starts, in place of the image's. Raises ConfigError for a document
    without workers.
    """
    documents = []
    if files:
        content = {"binaryData": {FILES_ARCHIVE: base64.b64encode(files).decode()}}
        documents.append(_config_map(spec, cluster, files_map(spec), content))
        spec = spec.model_copy(update={"working_dir": f"file://{FILES_FOLDER}/{FILES_ARCHIVE}"})
    if spec.settings:
        content = {"data": {SETTINGS_FILE: yaml.safe_dump(spec.settings, sort_keys=False)}}
        documents.append(_config_map(spec, cluster, settings_map(spec), content))
    rayjob = build_rayjob(spec, cluster)
    if files:
        mount_files(spec, rayjob["spec"]["rayClusterSpec"])
    return [*documents, rayjob]


def _config_map(spec: JobSpec, cluster: Document, name: str, content: Document) -> Document:
    """Return a ConfigMap, which cannot change under a job that runs."""
    metadata = _metadata(spec, cluster, name)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content, "immutable": True}


def build_rayjob(spec: JobSpec, cluster: Document) -> Document:
    """Return the RayJob of a job on such a cluster. Raises ConfigError for a document without workers.

    The argv is quoted once, for the shell that submits it; Ray quotes it again for the one that runs it. It asks for no
    CPU, since it runs on the head, which has none to give. A retry is the same argv on a new cluster.
    The operator puts the entrypoint into its submitter's `args`, where Kubernetes looks for references.

    The entrypoint holds the deadline itself: activeDeadlineSeconds ends no process while the cluster is there, and it
    is the backstop for a head that does not answer.
    """
    ray = ray_cluster(spec, cluster)
    argv = spec.command(f"{SETTINGS_FOLDER}/{SETTINGS_FILE}")
    entrypoint = shlex.join(argv if spec.deadline is None else deadline.wrap_command(argv, spec.deadline))
    body = {
        "entrypoint": literal(entrypoint) if spec.mode == "K8sJobMode" else entrypoint,
        "runtimeEnvYAML": field_text({"working_dir": spec.working_dir}) if spec.working_dir else None,
        "submissionMode": spec.mode,
        **(_submission(spec, ray) if spec.mode == "K8sJobMode" else {}),
        "preRunningDeadlineSeconds": _start_deadline(spec),
        "activeDeadlineSeconds": None if spec.deadline is None else spec.deadline + BACKSTOP,
        **_ending(spec),
        "rayClusterSpec": ray,
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(spec, cluster, spec.name, _queue(spec)),
        "spec": {key: value for key, value in body.items() if value is not None},
    }


def _start_deadline(spec: JobSpec) -> int:
    """Return the deadline of the start, which the operator wants before that of the whole job."""
    return spec.start_deadline if spec.deadline is None else max(min(spec.start_deadline, spec.deadline - 1), 1)


def _queue(spec: JobSpec) -> Document:
    labels = {QUEUE: spec.queue, PRIORITY: spec.priority_class}
    return {key: value for key, value in labels.items() if value}


def _submission(spec: JobSpec, ray: Document) -> Document:
    template = submitter(Cluster("", ray, {}).head)
    if spec.deadline is not None:
        # Once the cluster is deleted, a new pod of the submitter's Job waits for the Secret of that cluster for ever.
        template["spec"]["activeDeadlineSeconds"] = spec.deadline + BACKSTOP
    return {"submitterPodTemplate": template, "backoffLimit": spec.retries}


def _ending(spec: JobSpec) -> Document:
    """Return what is deleted when. The RayJob and the log of its submitter stay until somebody deletes them.

    Workers go with the end of the job, whatever ended it: what they made is in the run's folder, and their GPUs cost.
    The operator cannot tell a command that failed from a job that never started (both are Failed, and the rule that
    deletes more wins), so by default a failure keeps nothing, and no Pending pod makes a node autoscaler buy a node.

    Kueue holds a queued job back by `suspend`, with which the operator wants the older pair of fields. Those keep the
    workers too, while Kueue has given their share to the next job; so by default they keep nothing either.
    A job stopped through Ray counts as neither success nor failure, so its cluster goes with the RayJob.
    """
    if spec.queue:
        return {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": spec.keep_succeeded or 0}
    keep_succeeded = KEEP_SUCCEEDED if spec.keep_succeeded is None else spec.keep_succeeded
    rules = _deletion("jobStatus", "SUCCEEDED", keep_succeeded)
    rules += _deletion("jobDeploymentStatus", "Failed", spec.keep_failed)
    return {"deletionStrategy": {"deletionRules": rules}}


def _deletion(field: str, value: str, keep_head: int) -> list[Document]:
    """Return rules that delete the workers at once, and the head after `keep_head` seconds."""
    workers = {"policy": "DeleteWorkers", "condition": {field: value, "ttlSeconds": 0}}
    cluster = {"policy": "DeleteCluster", "condition": {field: value, "ttlSeconds": keep_head}}
    return [workers, cluster] if keep_head else [cluster]


def _metadata(spec: JobSpec, cluster: Document, name: str, more: Document | None = None) -> Document:
    labels = {"app.kubernetes.io/part-of": "sp500", "app.kubernetes.io/name": "job", **(more or {})}
    # The claims that the pods mount are where the cluster's document is.
    namespace = spec.namespace or section(cluster, "metadata").get("namespace")
    return {"name": name} | ({"namespace": namespace} if namespace else {}) | {"labels": labels}
