"""What a manifest has to keep beyond its CRD's schema: the operator's rules, and our own.

The operator checks its rules when it meets the object, long after the API server took it, and says so in an event; here
they are checked before anything is sent. The facts are those of KubeRay 1.7.0 (ray-operator, validation and webhook).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from sp500.errors import ConfigError
from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Document, clusters, items, section
from sp500.jobs.operator import cluster_rules, feature_rules, job_rules, project_rules, security_rules, service_rules
from sp500.jobs.operator.violation import OPEN, Gates, Violation

UPGRADES = ("Recreate", "None")


def check(document: Document, gates: Gates = OPEN) -> None:
    """Raise ConfigError that lists every violation, with a line each."""
    if broken := violations(document, gates):
        name = section(document, "metadata").get("name", "")
        raise ConfigError("\n".join(f"{document.get('kind')} {name}: {violation}" for violation in broken))


def violations(document: Document, gates: Gates = OPEN) -> list[Violation]:
    """Every broken rule of a RayCluster, RayJob, RayService or RayCronJob; none for other kinds.

    `gates` are the operator's feature gates that are open.
    """
    kind = document.get("kind")
    if kind not in names.LONGEST:
        return []
    broken = [*name(document), *upgrades(document)]
    for cluster in clusters(document):
        broken += _of_cluster(cluster, gates)
    if kind == "RayCluster":
        broken += conditions(document)
    if kind == "RayJob":
        broken += _of_job(document, gates)
    if kind == "RayService":
        broken += chain.from_iterable(rule(document) for rule in service_rules.SERVICE_RULES)
    if kind == "RayCronJob":
        broken += chain.from_iterable(rule(document) for rule in service_rules.CRON_RULES)
        broken += chain.from_iterable(rule(document, gates) for rule in service_rules.CRON_GATED)
        broken += _of_template(document, gates)
    return broken


def name(document: Document) -> Iterator[Violation]:
    """An object's name is a label with room for what the operator adds to it."""
    metadata, kind = section(document, "metadata"), str(document["kind"])
    if "name" not in metadata and "generateName" in metadata:
        return
    object_name, longest = str(metadata.get("name", "")), names.LONGEST[kind]
    if len(object_name) > longest:
        problem = f"{object_name!r} has {len(object_name)} characters"
        yield Violation("metadata.name", problem, f"a {kind} has {longest} at most, since the operator adds to it")
    elif not names.DNS_1035.fullmatch(object_name):
        yield Violation(
            "metadata.name", f"{object_name!r} is not a valid name", "a-z, 0-9 and '-', a letter first and no '-' last"
        )


def upgrades(document: Document) -> Iterator[Violation]:
    """A RayCluster says how it is upgraded; one that a job or service makes is theirs."""
    labels = section(section(document, "metadata"), "labels")
    for cluster in clusters(document):
        if "upgradeStrategy" not in cluster.spec:
            continue
        path, kind = f"{cluster.path}.upgradeStrategy", section(cluster.spec, "upgradeStrategy").get("type")
        owner = labels.get("ray.io/originated-from-crd", document["kind"])
        if owner in {"RayJob", "RayService"}:
            yield Violation(path, f"is set in the cluster of a {owner}", "leave it out")
        elif kind is not None and kind not in UPGRADES:
            yield Violation(f"{path}.type", f"is {kind}", f"give one of {', '.join(UPGRADES)}")


def conditions(document: Document) -> Iterator[Violation]:
    """A cluster is not at once suspended and about to be."""
    states = items(section(document, "status").get("conditions"))
    true = {state.get("type") for state in states if state.get("status") == "True"}
    if {"RayClusterSuspending", "RayClusterSuspended"} <= true:
        problem = "has RayClusterSuspending and RayClusterSuspended both true"
        yield Violation("status.conditions", problem, "the status is damaged; delete the cluster and make it anew")


def _of_cluster(cluster: Cluster, gates: Gates) -> Iterator[Violation]:
    for rule in (*cluster_rules.RULES, *project_rules.CLUSTER_RULES, security_rules.of_cluster):
        yield from rule(cluster)
    for gated in feature_rules.RULES:
        yield from gated(cluster, gates)


def _of_job(job: Document, gates: Gates) -> Iterator[Violation]:
    for rule in (*job_rules.RULES, *project_rules.JOB_RULES, security_rules.of_submitter):
        yield from rule(job)
    for gated in job_rules.GATED:
        yield from gated(job, gates)


def _of_template(cron: Document, gates: Gates) -> Iterator[Violation]:
    """The rules of the jobs that a RayCronJob makes, which have its name and a time."""
    job = {
        "kind": "RayJob",
        "metadata": {"generateName": "cron-"},
        "spec": section(section(cron, "spec"), "jobTemplate"),
    }
    for violation in violations(job, gates):
        path = violation.path.replace("spec", "spec.jobTemplate", 1)
        yield Violation(path, violation.found, violation.remedy, violation.ours, violation.rule)
