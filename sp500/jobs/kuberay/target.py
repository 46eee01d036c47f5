"""Kubernetes with KubeRay as a target: each job gets a Ray cluster of its own."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.errors import ConfigError
from sp500.jobs import command_words, names, working_dir
from sp500.jobs.command_words import IMAGE_FOLDER, SYSTEM
from sp500.jobs.executor import Request
from sp500.jobs.kuberay import contexts
from sp500.jobs.manifests.manifest import Cluster, Container, Document, clusters, items, quantity, section, text
from sp500.jobs.manifests.pods import GPU, literal
from sp500.jobs.resources import Resources
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import Role
from sp500.jobs.target import Options, Place, Pods, Target
from sp500.schema import read_documents

if TYPE_CHECKING:
    from sp500.jobs.kuberay.executor import KubeRayExecutor

# What the Dockerfile copies into the folder that commands start in.
IN_IMAGE = ("experiments", "sp500", "pyproject.toml")
# Of the files, and of their zip, which is as large as a ConfigMap holds: each file adds its path twice.
LIMIT_BYTES, LIMIT_ZIP_BYTES, ARCHIVED = 10**6, 2**20, "files"
# Ends the name under which a job is sent as a dry run.
TRIED = "-check"


class KubeRayOptions(Options):
    """Options to reach and make a cluster on Kubernetes."""

    cluster: Path = Path("cluster/raycluster.yaml")
    """With --on kuberay: file with the RayCluster whose pods the job gets; - reads stdin: kubectl kustomize
    cluster/overlays/gpu | ..."""
    context: str | None = None
    """With --on kuberay: context of your kubeconfig. Default: the current one."""

    @cached_property
    def ray_cluster(self) -> Document:
        """The cluster, read once: stdin gives it once."""
        return read_cluster(self.cluster)


class KubeRayTarget(Target):
    """RayJobs in a namespace of a Kubernetes cluster."""

    name = "kuberay"
    options = KubeRayOptions
    seconds_between_looks = 2.0
    makes_cluster = True
    ends_late_jobs = True
    # From a node to the command, with the image on its node: 22 s to 50 s were measured.
    start_seconds = 40.0

    def locate(self, spec: JobSpec, options: KubeRayOptions, folder: Path) -> Place:
        """Return namespace, context and kubeconfigs: the job stays there if others become the current ones."""
        context, own = contexts.select_context(os.environ, options.context)
        namespace = spec.namespace or section(options.ray_cluster, "metadata").get("namespace") or own
        kubeconfig = os.pathsep.join(map(str, contexts.files(os.environ))) or None
        return {"on": self.name, "namespace": namespace, "context": context, "kubeconfig": kubeconfig}

    def check(self, specs: Sequence[JobSpec], options: KubeRayOptions, folder: Path) -> None:
        """Send the first job for each namespace as a dry run."""
        places = [self.locate(spec, options, folder) for spec in specs]
        first = {
            place["namespace"]: (spec, place) for spec, place in zip(reversed(specs), reversed(places), strict=True)
        }
        for spec, place in first.values():
            executor = self.executor(place, folder)
            executor.reachable()
            name = spec.name[: names.LONGEST["RayJob"] - len(TRIED)].rstrip("-")
            executor.check(self.request(spec, name + TRIED, options))

    def request(self, spec: JobSpec, id: str, options: KubeRayOptions) -> Request:
        """Return the RayJob and what belongs to it. Raises ConfigError for a manifest that breaks a rule."""
        from sp500.jobs.kuberay import executor

        files = check(spec, options.ray_cluster)
        # The queue repeats a failed start: the operator would do so whatever its exit code.
        return executor.request(spec.model_copy(update={"retries": 0}), options.ray_cluster, id, files)

    def executor(self, place: Place, folder: Path) -> KubeRayExecutor:
        """Return the executor of that namespace."""
        from sp500.jobs.kuberay.executor import KubeRayExecutor

        return KubeRayExecutor(place["namespace"], place["context"], place["kubeconfig"])

    def start(self, request: Request, id: str, handle: str, devices: Sequence[int] | None = None) -> Request:
        """Name the documents as the start. An id ends in random characters, so it is nothing else in them."""
        return request if handle == id else json.loads(json.dumps(request).replace(id, handle))

    def resume(self, request: Request, argv: Sequence[str]) -> Request:
        """Return the request with --resume at the end of its command, in which each $ may be doubled."""
        resumed = super().resume(request, list(map(literal, argv)))
        return resumed if resumed != request else super().resume(request, argv)

    def waits_elsewhere(self, spec: JobSpec) -> bool:
        """Return whether Kueue decides when it starts."""
        return spec.queue is not None

    def pods(self, spec: JobSpec, request: Request) -> list[Pods]:
        """Return head, workers and submitter."""
        return [pods for document in request["documents"] for pods in pods_of(document)]

    def demand(self, spec: JobSpec, request: Request) -> Resources:
        """Return the requests of all its pods, as a namespace's quota counts them."""
        return sum((pods.total for pods in self.pods(spec, request)), Resources())

    def billed_since(self, claimed: float, placed: float | None, started: float | None) -> float | None:
        """Return when a worker had a node: nobody pays for pods that wait for Kueue or a node.

        One that ran had a node, also if the queue did not look in time.
        """
        return started if placed is None else placed

    def most_workers(self, options: KubeRayOptions) -> tuple[int, str] | None:
        """Return what the groups of workers may grow to."""
        groups = [group for cluster in clusters(options.ray_cluster) for group in cluster.workers]
        most = sum(int(group.body.get("maxReplicas") or 0) for group in groups)
        return most, f"the cluster of {options.cluster}"

    def preview(self, requests: Sequence[Request]) -> str:
        """Return the manifests."""
        return text([document for request in requests for document in request["documents"]])

    def describe(self, place: Place) -> str:
        """Return its name, namespace and context."""
        context = f", context {place['context']}" if place["context"] else ""
        return f"{self.name}, namespace {place['namespace']}{context}"


def check(spec: JobSpec, cluster: Document) -> bytes:
    """Return a zip of the files of this folder that go with the job; empty for a job that has none.

    Raises ConfigError for a command, or a file in it, that the job's pods do not have.
    """
    command_words.check(spec)
    mounts = [
        str(mount.get("mountPath"))
        for group in Cluster("spec", section(cluster, "spec"), {}).groups
        for mount in items(group.ray.body.get("volumeMounts"))
    ]
    # A zip of the code, or the folder that the user uploads, is not known here.
    uploads = spec.working_dir is not None or spec.mode == "InteractiveMode"
    files = None if uploads else command_words.find_program_files(spec)

    def has(path: Path) -> bool:
        """Return whether the pods have it, if that is known."""
        if path.is_absolute():
            return command_words.is_below(path, (*mounts, *SYSTEM))
        if files is not None:
            return path in files or not path.parts
        return ".." not in path.parts[:1] and (uploads or path.parts[:1] == () or path.parts[0] in IN_IMAGE)

    for word, path in command_words.find_local_paths(spec):
        if not has(path):
            if files is not None and path.is_file() and not path.is_absolute():
                raise ConfigError(f"{word}: this is on this machine, and does not go with the job. Add it to --file")
            raise ConfigError(
                f"{word}: this is on this machine, and not in the job's pods. Upload its folder (scripts/upload-data "
                f"FOLDER) and name it /data/FOLDER/{path.name}, or copy it into the image and name it {IMAGE_FOLDER}/"
                f"{path.name}; a file of settings goes with the job by --settings"
            )
    return b"" if files is None else pack_files(files)


def pack_files(paths: Sequence[Path]) -> bytes:
    """Return a zip of files of this folder as Ray unpacks it. Raises ConfigError for what cannot go with a job.

    Its dates are constant, so that the same files make the same request.
    """
    for path in paths:
        _check_name(path)
    buffer = io.BytesIO()
    try:
        sizes = {path: path.stat().st_size for path in paths}
        if (total := sum(sizes.values())) > LIMIT_BYTES:
            largest = max(paths, key=lambda path: sizes[path])
            raise ConfigError(
                f"{largest}: with it the files of the command are {total / 1e6:.2f} MB, over the 1 MB of a ConfigMap. "
                f"Upload its folder (scripts/upload-data FOLDER) and name it /data/FOLDER/{largest.name}"
            )
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(f"{ARCHIVED}/"), b"")  # Ray leaves out a first folder that holds all
            for path in paths:
                entry = zipfile.ZipInfo(f"{ARCHIVED}/{path}")
                entry.external_attr = path.stat().st_mode << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be read in {Path.cwd()} ({error.strerror}); correct the path of the file"
        ) from None
    if (size := len(buffer.getvalue())) > LIMIT_ZIP_BYTES:
        raise ConfigError(
            f"--file: {len(paths)} files in a zip of {size / 1e6:.2f} MB, over the {LIMIT_ZIP_BYTES / 1e6:.2f} MB of "
            "a ConfigMap. Upload their folder: scripts/upload-data FOLDER"
        )
    return buffer.getvalue()


def _check_name(path: Path) -> None:
    """Raise ConfigError for a file outside this folder, or that looks like credentials, by itself or where it leads."""
    folder, real = Path.cwd(), Path(os.path.realpath(path))  # Path.resolve has another error for a loop of links
    if path.parts[:1] == ("..",) or not real.is_relative_to(folder):
        link = "" if path.parts[:1] == ("..",) else f" (it is a link to {real})"
        raise ConfigError(f"{path}: is not in this folder{link}, whose files go with the job: change to one above")
    if working_dir.is_credential(path) or working_dir.is_credential(real.relative_to(folder)):
        raise ConfigError(f"{path}: looks like credentials. Leave it out, and use --secrets NAME=SECRET/KEY")


def read_cluster(path: Path) -> Document:
    """Return the RayCluster among a file's documents; - is stdin.

    Raises ConfigError for none, for several, and for one that breaks a rule.
    """
    from sp500.jobs.manifests import rules

    file = Path("/dev/stdin") if path == Path("-") else path
    clusters: list[Document] = [
        document
        for document in read_documents(file, "--cluster")
        if isinstance(document, dict) and document.get("kind") == "RayCluster"
    ]
    if len(clusters) != 1:
        raise ConfigError(f"--cluster {path}: expected one document of kind RayCluster, found {len(clusters)}")
    rules.check(clusters[0])
    return clusters[0]


def pods_of(job: Document) -> list[Pods]:
    """Return how many pods of each kind a RayJob has, and what each requests: head, groups of workers, submitter."""
    pods = [
        Pods(Role.WORKER, int(group.body.get("replicas") or 0), _requests(group.containers))
        if at
        else Pods(Role.HEAD, 1, _requests(group.containers))
        for cluster in clusters(job)
        for at, group in enumerate(cluster.groups)
    ]
    submitter = section(section(section(job, "spec"), "submitterPodTemplate"), "spec")
    containers = [Container("", body) for body in items(submitter.get("containers"))]
    return [*pods, Pods(Role.SUBMITTER, 1, _requests(containers))] if containers else pods


def _requests(containers: Iterable[Container]) -> Resources:
    """Return what the containers of a pod request, or their limits if they request nothing."""
    total = Resources()
    for container in containers:
        cpus, gpus, memory = (
            quantity(container.resource("requests", name) or container.resource("limits", name)) or 0
            for name in ("cpu", GPU, "memory")
        )
        total += Resources(cpus, gpus, memory)
    return total


KUBERAY = KubeRayTarget()
