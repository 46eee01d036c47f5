"""Rules of the operator (KubeRay 1.7, validation and webhook) that no schema holds, for fields of manifests made here.

The operator checks them when it meets the object, long after the API server accepted it, and reports in an event, which
`sp500 cluster deploy` and a job's reason show. Checked here are the fields that users change: names, groups, numbers of
workers, the token. All others are left to the operator: a copy would have to follow each of its releases. So are the
fields of a RayJob besides its cluster: `manifests/rayjob` makes them out of a checked JobSpec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Document, section
from sp500.jobs.operator.violation import Violation


def object_name(document: Document) -> Iterator[Violation]:
    """Require a name that is a label with room for what the operator appends."""
    metadata, kind = section(document, "metadata"), str(document["kind"])
    if "name" not in metadata and "generateName" in metadata:
        return
    name, longest = str(metadata.get("name", "")), names.LONGEST[kind]
    if len(name) > longest:
        problem = f"{name!r} has {len(name)} characters"
        yield Violation("metadata.name", problem, f"a {kind} has {longest} at most, since the operator appends to it")
    elif not names.DNS_1035.fullmatch(name):
        yield Violation(
            "metadata.name", f"{name!r} is not a valid name", "a-z, 0-9 and '-', a letter first and no '-' last"
        )


def containers(cluster: Cluster) -> Iterator[Violation]:
    """Require a container in every pod."""
    for group in cluster.groups:
        if not group.containers:
            yield Violation(f"{group.pod_path}.containers", "is empty", "add one; the first container is Ray's")


def group_names(cluster: Cluster) -> Iterator[Violation]:
    """Forbid two worker groups of one name."""
    counts = Counter(group.body.get("groupName") for group in cluster.workers)
    for group in cluster.workers:
        if counts[name := group.body.get("groupName")] > 1:
            yield Violation(
                f"{group.path}.groupName", f"{name!r} is the name of several groups", "name each differently"
            )


def replicas(cluster: Cluster) -> Iterator[Violation]:
    """Require the smallest and largest number of workers, in order."""
    for group in cluster.workers:
        low, high = (group.body.get(key) for key in ("minReplicas", "maxReplicas"))
        if not cluster.autoscaling and (low is None or high is None):
            path = f"{group.path}.{'minReplicas' if low is None else 'maxReplicas'}"
            yield Violation(path, "is unset without an autoscaler", "set minReplicas and maxReplicas")
        for key, value in (("minReplicas", low), ("maxReplicas", high)):
            yield from _check_least(f"{group.path}.{key}", value, 0)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Violation(f"{group.path}.minReplicas", f"{low} is above maxReplicas {high}", "make it that or less")


def token(cluster: Cluster) -> Iterator[Violation]:
    """Require Ray 2.52 for token authentication."""
    mode, version = section(cluster.spec, "authOptions").get("mode"), cluster.spec.get("rayVersion")
    if mode == "token" and (cluster.version is None or cluster.version < (2, 52)):
        problem = f"is token with {'no rayVersion' if version is None else f'rayVersion {version!r}'}"
        remedy = "it needs Ray 2.52; set rayVersion to the image's"
        yield Violation(f"{cluster.path}.authOptions.mode", problem, remedy)


def _check_least(path: str, value: Any, least: int) -> Iterator[Violation]:
    if isinstance(value, int) and value < least:
        yield Violation(path, f"is {value}", f"set {least} or more, or leave it out")


DOCUMENT_RULES = (object_name,)
CLUSTER_RULES = (containers, group_names, replicas, token)
