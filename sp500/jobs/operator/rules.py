"""Check a manifest before it is sent: the operator's rules, and those of this project.

The CRD's schema is left to the API server, which the executor asks in a dry run.
"""

from __future__ import annotations

from itertools import chain

from sp500.errors import ConfigError
from sp500.jobs import names
from sp500.jobs.manifests.manifest import Document, clusters, section
from sp500.jobs.operator import cluster_rules, security_rules
from sp500.jobs.operator.cluster_rules import Violation

KINDS = tuple(names.LONGEST)
CLUSTER_RULES = (*cluster_rules.CLUSTER_RULES, *cluster_rules.CLUSTER_TRAPS, security_rules.of_cluster)
JOB_RULES = (*cluster_rules.JOB_TRAPS, security_rules.of_submitter)


def check(document: Document) -> None:
    """Raise ConfigError that lists every violation, with a line each."""
    if broken := violations(document):
        name = section(document, "metadata").get("name", "")
        raise ConfigError("\n".join(f"{document.get('kind')} {name}: {violation}" for violation in broken))


def violations(document: Document) -> list[Violation]:
    """Return every rule that a RayCluster, RayJob or RayService breaks; none for other kinds."""
    kind = document.get("kind")
    if kind not in KINDS:
        return []
    of_job = JOB_RULES if kind == "RayJob" else ()
    return [
        *chain.from_iterable(rule(document) for rule in cluster_rules.DOCUMENT_RULES),
        *chain.from_iterable(rule(cluster) for cluster in clusters(document) for rule in CLUSTER_RULES),
        *chain.from_iterable(rule(document) for rule in of_job),
    ]
