"""Rules of the operator (KubeRay 1.7, validation and webhook) that no schema holds, for fields of manifests made here.

The operator checks them when it meets the object, long after the API server accepted it, and reports in an event. What
it requires of other fields (GCS fault tolerance, features behind its gates, incremental upgrades, selected clusters) is
left to it: a copy would have to follow each of its releases, for fields that no manifest of this project sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import yaml

from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, Document, clusters, is_true, items, section
from sp500.jobs.operator.violation import Violation

V2_SWITCH = "RAY_enable_autoscaler_v2"
# How a new spec reaches the pods of a RayCluster, and of a RayService.
CLUSTER_UPGRADES = ("Recreate", "None")
SERVICE_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
# In this order: a later policy deletes what an earlier one deletes, and more.
GROWING = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
RULES_PATH = "spec.deletionStrategy.deletionRules"


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


def upgrades(document: Document) -> Iterator[Violation]:
    """Require a known upgrade strategy, at the top of a RayCluster or RayService and nowhere else."""
    for cluster in clusters(document):
        if "upgradeStrategy" in cluster.spec and document["kind"] != "RayCluster":
            path = f"{cluster.path}.upgradeStrategy"
            yield Violation(path, f"is set in the cluster of a {document['kind']}", "leave it out")
    known = {"RayCluster": CLUSTER_UPGRADES, "RayService": SERVICE_UPGRADES}.get(document["kind"])
    kind = section(section(document, "spec"), "upgradeStrategy").get("type")
    if known and kind not in {None, *known}:
        yield Violation("spec.upgradeStrategy.type", f"is {kind}", f"set one of {', '.join(known)}")


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


def idle_timeout(cluster: Cluster) -> Iterator[Violation]:
    """Require time-outs of idle workers of 0 or more, and version 2 of the autoscaler for those of one group."""
    whole = cluster.autoscaler.get("idleTimeoutSeconds")
    yield from _check_least(f"{cluster.path}.autoscalerOptions.idleTimeoutSeconds", whole, 0)
    for group in cluster.workers:
        path, value = f"{group.path}.idleTimeoutSeconds", group.body.get("idleTimeoutSeconds")
        yield from _check_least(path, value, 0)
        if value is not None and not cluster.v2:
            yield Violation(path, "needs autoscaler v2", "set autoscalerOptions.version: v2, or leave it out")


def autoscaler_version(cluster: Cluster) -> Iterator[Violation]:
    """Require that the autoscaler's version is set once, and only if there is an autoscaler."""
    for group in cluster.groups:
        if V2_SWITCH not in group.ray.env:
            continue
        path = f"{group.ray.path}.env"
        if not cluster.autoscaling and is_true(group.ray.env[V2_SWITCH]):
            remedy = "set enableInTreeAutoscaling: true, or leave it out"
            yield Violation(path, f"has {V2_SWITCH} without an autoscaler", remedy)
        if cluster.autoscaler.get("version") is not None:
            problem = f"has {V2_SWITCH} as well as autoscalerOptions.version"
            yield Violation(path, problem, "leave the variable out")


def restart_policy(cluster: Cluster) -> Iterator[Violation]:
    """Forbid restarts in place with autoscaler v2, which replaces pods itself."""
    for group in cluster.groups if cluster.autoscaling and cluster.v2 else []:
        policy = group.pod.get("restartPolicy")
        if policy not in {None, "Never"}:
            path = f"{group.pod_path}.restartPolicy"
            yield Violation(path, f"is {policy} with autoscaler v2", "make it Never, or leave it out")


def token(cluster: Cluster) -> Iterator[Violation]:
    """Require Ray 2.52 for token authentication."""
    mode, version = section(cluster.spec, "authOptions").get("mode"), cluster.spec.get("rayVersion")
    if mode == "token" and (cluster.version is None or cluster.version < (2, 52)):
        problem = f"is token with {'no rayVersion' if version is None else f'rayVersion {version!r}'}"
        remedy = "it needs Ray 2.52; set rayVersion to the image's"
        yield Violation(f"{cluster.path}.authOptions.mode", problem, remedy)


def suspension(job: Document) -> Iterator[Violation]:
    """Require that a suspended job takes its cluster with it."""
    spec = section(job, "spec")
    if spec.get("suspend") is True and not _shuts_down(spec):
        yield Violation("spec.suspend", "is true", "set shutdownAfterJobFinishes: true as well")


def time_to_live(job: Document) -> Iterator[Violation]:
    """Require a shutdown for ttlSecondsAfterFinished to count to."""
    spec = section(job, "spec")
    seconds = spec.get("ttlSecondsAfterFinished", 0)
    yield from _check_least("spec.ttlSecondsAfterFinished", seconds, 0)
    if isinstance(seconds, int) and seconds > 0 and not _shuts_down(spec):
        remedy = "set shutdownAfterJobFinishes: true, or use deletionRules"
        yield Violation("spec.ttlSecondsAfterFinished", f"is {seconds} without a shutdown", remedy)


def job_cluster(job: Document) -> Iterator[Violation]:
    """Require a cluster, of the job's own or selected."""
    spec = section(job, "spec")
    if not section(spec, "clusterSelector") and not isinstance(spec.get("rayClusterSpec"), dict):
        remedy = "describe a cluster there, or select one by spec.clusterSelector"
        yield Violation("spec.rayClusterSpec", "is unset", remedy)


def interactive(job: Document) -> Iterator[Violation]:
    """Forbid retries of what a person submits."""
    spec = section(job, "spec")
    if spec.get("submissionMode") == "InteractiveMode" and (spec.get("backoffLimit") or 0) > 0:
        yield Violation("spec.backoffLimit", f"is {spec['backoffLimit']} in InteractiveMode", "leave it out")


def runtime_env(job: Document) -> Iterator[Violation]:
    """Require YAML in runtimeEnvYAML."""
    try:
        yaml.safe_load(section(job, "spec").get("runtimeEnvYAML") or "")
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        yield Violation("spec.runtimeEnvYAML", f"is not valid YAML ({why:.80})", "write Ray's runtime_env as YAML text")


def limits(job: Document) -> Iterator[Violation]:
    """Require deadlines above 0, and retries of 0 or more."""
    for key, least in (("activeDeadlineSeconds", 1), ("preRunningDeadlineSeconds", 1), ("backoffLimit", 0)):
        yield from _check_least(f"spec.{key}", section(job, "spec").get(key), least)


def deletion(job: Document) -> Iterator[Violation]:
    """Forbid two ways of deleting: rules together with a shutdown, or with workers that an autoscaler starts again."""
    spec, rules = section(job, "spec"), _deletion_rules(job)
    if rules and _shuts_down(spec):
        yield Violation(RULES_PATH, "conflicts with shutdownAfterJobFinishes", "leave one of the two out")
    if any(cluster.autoscaling for cluster in clusters(job)):
        for at, rule in enumerate(rules):
            if rule.get("policy") == "DeleteWorkers":
                yield Violation(
                    f"{RULES_PATH}[{at}].policy", "is DeleteWorkers with an autoscaler", "set DeleteCluster"
                )


def deletion_rules(job: Document) -> Iterator[Violation]:
    """Require one condition per rule, no rule twice, and that a policy which deletes more comes no sooner."""
    rules = _deletion_rules(job)
    for at, rule in enumerate(rules):
        path, condition = f"{RULES_PATH}[{at}].condition", section(rule, "condition")
        if ("jobStatus" in condition) == ("jobDeploymentStatus" in condition):
            yield Violation(path, "needs one of jobStatus and jobDeploymentStatus", "set exactly one")
        yield from _check_least(f"{path}.ttlSeconds", condition.get("ttlSeconds"), 0)
    counts = Counter(f"{rule.get('policy')} on {_condition(rule)}" for rule in rules)
    for repeated in (rule for rule, count in counts.items() if count > 1):
        yield Violation(RULES_PATH, f"has {repeated} more than once", "keep one of them")
    for at, late in enumerate(rules):
        for soon in rules:
            if _condition(soon) == _condition(late) and _contains(late, soon) and _seconds(late) < _seconds(soon):
                problem = f"{_seconds(late)} lets {late['policy']} come before {soon['policy']}"
                remedy = f"set {_seconds(soon)} or more"
                yield Violation(f"{RULES_PATH}[{at}].condition.ttlSeconds", problem, remedy)


def _check_least(path: str, value: Any, least: int) -> Iterator[Violation]:
    if isinstance(value, int) and value < least:
        yield Violation(path, f"is {value}", f"set {least} or more, or leave it out")


def _deletion_rules(job: Document) -> list[Document]:
    return items(section(section(job, "spec"), "deletionStrategy").get("deletionRules"))


def _condition(rule: Document) -> str:
    condition = section(rule, "condition")
    return " ".join(f"{key} {condition[key]}" for key in ("jobStatus", "jobDeploymentStatus") if key in condition)


def _seconds(rule: Document) -> int:
    seconds = section(rule, "condition").get("ttlSeconds", 0)
    return seconds if isinstance(seconds, int) else 0


def _contains(more: Document, less: Document) -> bool:
    policies: list[Any] = [less.get("policy"), more.get("policy")]
    return all(policy in GROWING for policy in policies) and GROWING.index(policies[0]) < GROWING.index(policies[1])


def _shuts_down(spec: Document) -> bool:
    return spec.get("shutdownAfterJobFinishes") is True


DOCUMENT_RULES = (object_name, upgrades)
CLUSTER_RULES = (containers, group_names, replicas, idle_timeout, autoscaler_version, restart_policy, token)
JOB_RULES = (
    suspension,
    time_to_live,
    job_cluster,
    interactive,
    runtime_env,
    limits,
    deletion,
    deletion_rules,
)
