"""The operator's rules for a RayJob (KubeRay 1.7). Those for its cluster are with the cluster's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import yaml

from sp500.jobs.manifests.manifest import Document, clusters, items, section
from sp500.jobs.operator.violation import Gates, Violation, check_gate

POLICIES = ("DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone")
# In this order: what a later one deletes contains what an earlier one does.
GROWING = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
RULES_PATH = "spec.deletionStrategy.deletionRules"


def suspension(job: Document) -> Iterator[Violation]:
    """Only a job that takes its cluster with it can be suspended."""
    spec = section(job, "spec")
    if spec.get("suspend") is True and not _shuts_down(spec):
        yield Violation("spec.suspend", "is true", "set shutdownAfterJobFinishes: true as well")


def time_to_live(job: Document) -> Iterator[Violation]:
    """What ttlSecondsAfterFinished counts to is a shutdown."""
    spec = section(job, "spec")
    seconds = spec.get("ttlSecondsAfterFinished", 0)
    if isinstance(seconds, int) and seconds < 0:
        yield Violation("spec.ttlSecondsAfterFinished", f"is {seconds}", "give 0 or more")
    if isinstance(seconds, int) and seconds > 0 and not _shuts_down(spec):
        remedy = "set shutdownAfterJobFinishes: true, or use deletionRules"
        yield Violation("spec.ttlSecondsAfterFinished", f"is {seconds} without a shutdown", remedy)


def cluster_choice(job: Document) -> Iterator[Violation]:
    """A job brings a cluster or selects one; a selected one is not the job's to suspend, retry on or enter."""
    spec, path = section(job, "spec"), "spec.clusterSelector"
    selector = section(spec, "clusterSelector")
    if not selector:
        if not isinstance(spec.get("rayClusterSpec"), dict):
            yield Violation("spec.rayClusterSpec", "is unset", f"describe a cluster there, or select one by {path}")
        return
    if not selector.get("ray.io/cluster"):
        yield Violation(f"{path}[ray.io/cluster]", "is empty", "name the RayCluster")
    if spec.get("suspend") is True:
        yield Violation("spec.suspend", f"is true with {path}", "leave one of the two out")
    if spec.get("submissionMode") == "SidecarMode":
        yield Violation("spec.submissionMode", f"is SidecarMode with {path}", "take K8sJobMode or HTTPMode")
    if (spec.get("backoffLimit") or 0) > 0:
        remedy = "a retry needs a cluster of its own; use rayClusterSpec, or leave it out"
        yield Violation("spec.backoffLimit", f"is {spec['backoffLimit']} with {path}", remedy)


def interactive(job: Document) -> Iterator[Violation]:
    """What a person submits, the operator cannot try again."""
    spec = section(job, "spec")
    if spec.get("submissionMode") == "InteractiveMode" and (spec.get("backoffLimit") or 0) > 0:
        yield Violation("spec.backoffLimit", f"is {spec['backoffLimit']} in InteractiveMode", "leave it out")


def sidecar(job: Document) -> Iterator[Violation]:
    """In SidecarMode the submitter is a container of the head, and the operator's alone."""
    spec = section(job, "spec")
    if spec.get("submissionMode") != "SidecarMode":
        return
    for key in ("submitterPodTemplate", "submitterConfig"):
        if key in spec:
            yield Violation(f"spec.{key}", "is set in SidecarMode", "leave it out")
    for cluster in clusters(job):
        if cluster.head.pod.get("restartPolicy") not in {None, "Never"}:
            path = f"{cluster.head.pod_path}.restartPolicy"
            yield Violation(path, f"is {cluster.head.pod['restartPolicy']} in SidecarMode", "make it Never")


def authentication(job: Document) -> Iterator[Violation]:
    """The cluster of a job or a service knows no tokens of Kubernetes."""
    for cluster in clusters(job):
        if section(cluster.spec, "authOptions").get("enableK8sTokenAuth") is True:
            path = f"{cluster.path}.authOptions.enableK8sTokenAuth"
            yield Violation(path, f"is set in a {job.get('kind')}", "it is for a RayCluster alone; leave it out")


def runtime_env(job: Document) -> Iterator[Violation]:
    """The text of runtimeEnvYAML is YAML."""
    try:
        yaml.safe_load(section(job, "spec").get("runtimeEnvYAML") or "")
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        yield Violation("spec.runtimeEnvYAML", f"is not valid YAML ({why:.80})", "give Ray's runtime_env as YAML text")


def limits(job: Document) -> Iterator[Violation]:
    """Deadlines are positive, retries not negative."""
    spec = section(job, "spec")
    for key, least in (("activeDeadlineSeconds", 1), ("preRunningDeadlineSeconds", 1), ("backoffLimit", 0)):
        value = spec.get(key)
        if isinstance(value, int) and value < least:
            yield Violation(f"spec.{key}", f"is {value}", f"give {least} or more, or leave it out")


def deletion_gate(job: Document, gates: Gates) -> Iterator[Violation]:
    """A deletionStrategy needs its feature gate, which is open unless somebody closed it."""
    if "deletionStrategy" in section(job, "spec"):
        yield from check_gate("spec.deletionStrategy", "RayJobDeletionPolicy", gates)


def deletion(job: Document) -> Iterator[Violation]:
    """What is deleted is said one way: by rules, by the older pair of policies, or by a shutdown."""
    spec, path = section(job, "spec"), "spec.deletionStrategy"
    if "deletionStrategy" not in spec:
        return
    strategy = section(spec, "deletionStrategy")
    older = [key for key in ("onSuccess", "onFailure") if key in strategy]
    if "deletionRules" in strategy and older:
        yield Violation(f"{path}.{older[0]}", "conflicts with deletionRules", "leave it out")
    if "deletionRules" in strategy and _shuts_down(spec):
        yield Violation(f"{path}.deletionRules", "conflicts with shutdownAfterJobFinishes", "leave one of the two out")
    if "deletionRules" in strategy:
        return
    for key in ("onSuccess", "onFailure"):
        policy = section(strategy, key).get("policy")
        if policy not in POLICIES:
            yield Violation(
                f"{path}.{key}.policy", f"is {policy}", f"give one of {', '.join(POLICIES)}, or deletionRules"
            )
        if policy == "DeleteNone" and _shuts_down(spec):
            problem = "is DeleteNone beside shutdownAfterJobFinishes"
            yield Violation(f"{path}.{key}.policy", problem, "leave one of the two out")


def deletion_rules(job: Document) -> Iterator[Violation]:
    """Each rule has one condition and no twin; what deletes more comes no sooner."""
    rules = _deletion_rules(job)
    for at, rule in enumerate(rules):
        path, condition = f"{RULES_PATH}[{at}].condition", section(rule, "condition")
        if ("jobStatus" in condition) == ("jobDeploymentStatus" in condition):
            yield Violation(path, "needs one of jobStatus and jobDeploymentStatus", "give exactly one")
        if _seconds(rule) < 0:
            yield Violation(f"{path}.ttlSeconds", f"is {_seconds(rule)}", "give 0 or more")
    twins = Counter(f"{rule.get('policy')} on {_condition(rule)}" for rule in rules)
    for twin in (twin for twin, count in twins.items() if count > 1):
        yield Violation(RULES_PATH, f"has {twin} more than once", "keep one of them")
    for at, late in enumerate(rules):
        for soon in rules:
            if _condition(soon) == _condition(late) and _contains(late, soon) and _seconds(late) < _seconds(soon):
                problem = f"{_seconds(late)} lets {late['policy']} come before {soon['policy']}"
                yield Violation(f"{RULES_PATH}[{at}].condition.ttlSeconds", problem, f"give {_seconds(soon)} or more")


def deletion_reach(job: Document) -> Iterator[Violation]:
    """A selected cluster is not the job's to delete; workers that an autoscaler starts cannot be deleted."""
    strategy = section(section(job, "spec"), "deletionStrategy")
    policies = [(f"{RULES_PATH}[{at}].policy", rule.get("policy")) for at, rule in enumerate(_deletion_rules(job))]
    policies += [
        (f"spec.deletionStrategy.{key}.policy", section(strategy, key).get("policy"))
        for key in ("onSuccess", "onFailure")
    ]
    selected = section(section(job, "spec"), "clusterSelector")
    autoscaling = any(cluster.autoscaling for cluster in clusters(job))
    for path, policy in policies:
        if selected and policy in {"DeleteCluster", "DeleteWorkers"}:
            yield Violation(path, f"is {policy} with spec.clusterSelector", "take DeleteSelf or DeleteNone")
        if autoscaling and policy == "DeleteWorkers":
            yield Violation(path, "is DeleteWorkers with an autoscaler", "take DeleteCluster")


def status(job: Document) -> Iterator[Violation]:
    """Only an interactive job waits for a person."""
    interactive = section(job, "spec").get("submissionMode") == "InteractiveMode"
    if section(job, "status").get("jobDeploymentStatus") == "Waiting" and not interactive:
        path = "status.jobDeploymentStatus"
        yield Violation(path, "is Waiting outside InteractiveMode", "delete the job and send it anew")


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


RULES = (
    suspension,
    time_to_live,
    cluster_choice,
    interactive,
    sidecar,
    authentication,
    runtime_env,
    limits,
    deletion,
    deletion_rules,
    deletion_reach,
    status,
)
GATED = (deletion_gate,)
