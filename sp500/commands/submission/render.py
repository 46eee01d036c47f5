"""`sp500 jobs render`: the manifests of a job or of a server, checked by the rules and not sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from sp500.commands.submission import job_flags
from sp500.config import Frozen
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.jobs.kuberay import target as kuberay
from sp500.jobs.kuberay.target import read_cluster
from sp500.jobs.manifests import manifest, rules
from sp500.jobs.manifests.manifest import Document
from sp500.jobs.manifests.rayjob import build_documents
from sp500.jobs.manifests.rayservice import build_rayservice


class Render(job_flags.JobFlags):
    """Print the manifests of a job on Kubernetes, after checking them."""

    cluster: Path = Path("cluster/raycluster.yaml")
    """File with the RayCluster whose pods the job gets; - reads stdin: kubectl kustomize cluster/overlays/gpu | ..."""
    serve: bool = False
    """The RayService that answers over HTTP, in place of a job: --serve --help has its flags."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout, with the manifests under `documents`."""


class RenderService(Frozen):
    """Print the RayService that answers over HTTP for a model, after checking it."""

    model: str = "main"
    """A model that runs were promoted for, or a run."""
    cluster: Path = Path("cluster/raycluster.yaml")
    """File with the RayCluster whose pods the service gets; - reads stdin, as without --serve."""
    image: str = ""
    """Image with the extra `serve`. Default: the cluster's with the suffix -serve."""
    namespace: str = ""
    """Namespace. Default: the cluster's."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout, with the manifest under `documents`."""


def main(argv: Sequence[str]) -> int:
    """Print the manifests as YAML, and return the exit code."""

    def run() -> tuple[str, int]:
        """Return the text, and 0."""
        words = job_flags.split(argv)[0]
        if "--serve" in words:
            rest = [word for word in argv if word != "--serve"]
            service_flags = arguments.parse(RenderService, rest, "sp500 jobs render --serve")
            rendered, as_json = [service(service_flags)], service_flags.json_output
        else:
            flags = job_flags.parse(Render, argv, "jobs render")
            rendered, as_json = manifests(flags), flags.json_output
        return json.dumps({"documents": rendered}, indent=1) if as_json else manifest.text(rendered), 0

    return run_command(run, only_json="--json" in job_flags.split(argv)[0])


def manifests(flags: Render) -> list[Document]:
    """Return what Kubernetes would get. Raises ConfigError for a job, cluster file or manifest that is wrong."""
    spec, cluster = flags.spec(), read_cluster(flags.cluster)
    rendered = build_documents(spec, cluster, kuberay.check(spec, cluster))
    for document in rendered:
        rules.check(document)
    return rendered


def service(flags: RenderService) -> Document:
    """Return what Kubernetes would get. Raises ConfigError for a cluster file or manifest that is wrong."""
    cluster = read_cluster(flags.cluster)
    rendered = build_rayservice(cluster, model=flags.model, image=flags.image, namespace=flags.namespace)
    rules.check(rendered)
    return rendered
