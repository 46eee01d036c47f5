"""`sp500 serve --on kuberay`: a RayService, applied and awaited."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import yaml

from sp500.commands.cluster.transfer import say
from sp500.errors import ConfigError, ResourcesError
from sp500.jobs.cluster import service
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.manifests import manifest, rules
from sp500.jobs.manifests.manifest import Cluster, Document, items, section
from sp500.jobs.manifests.rayservice import LABELS, NAME
from sp500.schema import read_documents

CLAIM = "PersistentVolumeClaim"


def deploy(
    kubectl: Kubectl, path: Path, model: str, *, image: str, key: str, trust_source: bool, seconds: float
) -> str:
    """Apply the manifests in the file, with `model` as what is served, and wait: how to reach it.

    Makes the Secret with `key`, or a new one, if there is none. Claims that exist stay as they are. Raises
    ConfigError for a file that is wrong, ResourcesError if the cluster refuses it or it does not answer in time.
    """
    documents = load(path, model, image=image, trust_source=trust_source)
    kubectl.reach()
    service.check(kubectl)
    _make_key(kubectl, key)
    missing = [document for document in documents if document["kind"] != CLAIM or not _exists(kubectl, document)]
    service.apply(kubectl, manifest.text(missing))
    service.wait(kubectl, NAME, seconds=seconds, say=say)
    where = " ".join(kubectl.argv()[1:])
    return (
        f"model {model} answers in namespace {kubectl.namespace}:\n"
        f"  kubectl {where} port-forward svc/{NAME}-serve-svc 8000 &\n"
        f"  key=$(kubectl {where} get secret {NAME} -o jsonpath='{{.data.key}}' | base64 -d)\n"
        '  curl -H "Authorization: Bearer $key" http://127.0.0.1:8000/v1/models'
    )


def load(path: Path, model: str, *, image: str = "", trust_source: bool = False) -> list[Document]:
    """Return the manifests, in which the RayService serves `model`.

    Raises ConfigError for none, several or broken rules.
    """
    documents: list[Document] = [
        document for document in read_documents(path, "--manifest") if isinstance(document, dict)
    ]
    if any(not document.get("kind") or not section(document, "metadata").get("name") for document in documents):
        raise ConfigError(f"--manifest {path}: a document lacks kind or metadata.name")
    services = [document for document in documents if document["kind"] == "RayService"]
    if len(services) != 1:
        raise ConfigError(f"--manifest {path}: expected one document of kind RayService, found {len(services)}")
    rules.check(services[0])
    name, spec = section(services[0], "metadata").get("name"), section(services[0], "spec")
    if name != NAME:
        raise ConfigError(
            f"--manifest {path}: the RayService is named {name}; expected {NAME}, as its Secret and Service"
        )
    try:
        config = yaml.safe_load(str(spec.get("serveConfigV2", "")))
    except yaml.YAMLError as error:
        raise ConfigError(f"--manifest {path}: spec.serveConfigV2 is not valid YAML ({error})") from error
    applications = items(config.get("applications")) if isinstance(config, dict) else []
    if len(applications) != 1:
        raise ConfigError(f"--manifest {path}: spec.serveConfigV2 has {len(applications)} applications, expected one")
    args = section(applications[0], "args") | {"name": model} | ({"trust_source": True} if trust_source else {})
    applications[0]["args"] = args
    spec["serveConfigV2"] = yaml.safe_dump(config, sort_keys=False)
    for group in Cluster("", section(spec, "rayClusterConfig"), {}).groups if image else ():
        group.ray.body["image"] = image
    return documents


def _make_key(kubectl: Kubectl, key: str) -> None:
    if kubectl.document("get", "secret", NAME):
        if key:
            say(f"Secret {NAME} exists already: its key is kept")
        return
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "labels": LABELS}}
    # Through stdin, since the list of processes shows arguments; created, since apply keeps a copy in clear text.
    manifest_text = json.dumps(body | {"stringData": {"key": key or secrets.token_urlsafe(32)}})
    try:
        kubectl.text("create", "--filename=-", stdin=manifest_text)
    except ResourcesError:
        if not kubectl.document("get", "secret", NAME):  # else another made it at the same moment
            raise
    say(f"Secret {NAME} made, with {'the key given' if key else 'a new key'}")


def _exists(kubectl: Kubectl, claim: Document) -> bool:
    return bool(kubectl.document("get", "persistentvolumeclaim", str(section(claim, "metadata").get("name"))))
