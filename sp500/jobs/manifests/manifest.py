"""Manifests as plain data: how to read a Ray cluster's out of one, and to write YAML.

Reading forgives a value of the wrong shape, as if it were not there: shapes are for the CRD's schema to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Document = dict[str, Any]

SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Container:
    """One container of a pod, and the path that leads to it."""

    path: str
    body: Document

    @property
    def env(self) -> dict[str, object]:
        """Value per variable; None for one that comes from elsewhere."""
        return {str(entry.get("name")): entry.get("value") for entry in items(self.body.get("env"))}

    def resource(self, side: str, name: str) -> Any:
        """Return what `resources.requests` or `.limits` say of one resource."""
        return section(section(self.body, "resources"), side).get(name)


@dataclass(frozen=True)
class Group:
    """The head group or a worker group of a Ray cluster."""

    path: str
    body: Document

    @property
    def params(self) -> Document:
        """Its rayStartParams."""
        return section(self.body, "rayStartParams")

    @property
    def pod(self) -> Document:
        """Spec of its pods."""
        return section(section(self.body, "template"), "spec")

    @property
    def pod_path(self) -> str:
        """Path of that spec."""
        return f"{self.path}.template.spec"

    @property
    def containers(self) -> list[Container]:
        """Containers of its pods; the operator uses the first as Ray's."""
        bodies = items(self.pod.get("containers"))
        return [Container(f"{self.pod_path}.containers[{at}]", body) for at, body in enumerate(bodies)]

    @property
    def ray(self) -> Container:
        """Ray's container; an empty one if the pod has none."""
        return next(iter(self.containers), Container(f"{self.pod_path}.containers[0]", {}))


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster inside a document: of a RayCluster, a RayJob or a RayService."""

    path: str
    spec: Document
    metadata: Document

    @property
    def head(self) -> Group:
        """The head group."""
        return Group(f"{self.path}.headGroupSpec", section(self.spec, "headGroupSpec"))

    @property
    def workers(self) -> list[Group]:
        """The worker groups."""
        bodies = items(self.spec.get("workerGroupSpecs"))
        return [Group(f"{self.path}.workerGroupSpecs[{at}]", body) for at, body in enumerate(bodies)]

    @property
    def groups(self) -> list[Group]:
        """Head and workers."""
        return [self.head, *self.workers]

    @property
    def autoscaling(self) -> bool:
        """True if Ray's autoscaler runs."""
        return self.spec.get("enableInTreeAutoscaling") is True

    @property
    def autoscaler(self) -> Document:
        """Its options."""
        return section(self.spec, "autoscalerOptions")

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor of rayVersion; None if it is unset or no version."""
        match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?([-+].*)?", str(self.spec.get("rayVersion", "")))
        return (int(match[1]), int(match[2])) if match else None


def section(body: Document, key: str) -> Document:
    """Return the mapping under `key`; an empty one if there is none."""
    value = body.get(key)
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Document]:
    """Return the mappings of a list; none if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def quantity(value: Any) -> float | None:
    """Return the number of a Kubernetes quantity such as 3Gi, 500m or 2; None if it is not a quantity."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[kMGT]|[KMGT]i)?", str(value))
    if not match:
        return None
    return float(match[1]) * (0.001 if match[2] == "m" else SUFFIXES[match[2] or ""])


def clusters(document: Document) -> Iterator[Cluster]:
    """Yield the Ray cluster that a document describes, if it does."""
    spec, metadata = section(document, "spec"), section(document, "metadata")
    inside = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}
    kind = document.get("kind")
    if kind == "RayCluster":
        yield Cluster("spec", spec, metadata)
    elif kind in inside and isinstance(spec.get(inside[kind]), dict):
        yield Cluster(f"spec.{inside[kind]}", spec[inside[kind]], metadata)


# Words that kubectl and the operator (go-yaml) read as a number or a truth value, and PyYAML writes without quotes.
READ_AS_ANOTHER_TYPE = re.compile(
    r"[yYnN]|[-+]?[\d_]*\.?[\d_]*([eE][-+]?[\d_]+)?|[-+]?0_?[xXoObB][\da-fA-F_]+", re.ASCII
)


class _Plain(yaml.SafeDumper):
    """YAML for readers: nothing by reference, long texts as they are, and every string a string for Go as well."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else "'" if READ_AS_ANOTHER_TYPE.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Plain.add_representer(str, _text)


def text(documents: list[Document]) -> str:
    """Return the documents as YAML, in their order."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110, explicit_start=True)


def field_text(document: Document) -> str:
    """Return a document as YAML inside a field of another, which the operator reads."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False)
