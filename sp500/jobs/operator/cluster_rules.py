"""The operator's rules for every Ray cluster (KubeRay 1.7, validation and webhook), which no schema holds.

Each function gives the violations of one rule. The fields of alpha features have a file of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sp500.jobs import names
from sp500.jobs.manifests.manifest import Cluster, is_true, items, section
from sp500.jobs.operator.violation import Violation

V2_SWITCH = "RAY_enable_autoscaler_v2"
START_COMMAND = "KUBERAY_GEN_AUTOSCALER_START_CMD"
RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")


def containers(cluster: Cluster) -> Iterator[Violation]:
    """Every pod has a container."""
    for group in cluster.groups:
        if not group.containers:
            yield Violation(f"{group.pod_path}.containers", "is empty", "the first container there is Ray's; give one")


def group_names(cluster: Cluster) -> Iterator[Violation]:
    """No two worker groups have one name."""
    counts = Counter(group.body.get("groupName") for group in cluster.workers)
    for group in cluster.workers:
        if counts[name := group.body.get("groupName")] > 1:
            yield Violation(
                f"{group.path}.groupName", f"{name!r} is the name of several groups", "name each differently"
            )


def resources_once(cluster: Cluster) -> Iterator[Violation]:
    """A group says its resources in one place."""
    for group in cluster.groups:
        both = [name for name in RESOURCE_PARAMS if name in group.params]
        if section(group.body, "resources") and both:
            path = f"{group.path}.rayStartParams.{both[0]}"
            yield Violation(path, f"duplicates {group.path}.resources", "say the group's resources in one of the two")


def labels(cluster: Cluster) -> Iterator[Violation]:
    """Ray's labels belong in `labels` and are labels of Kubernetes."""
    for group in cluster.groups:
        if "labels" in group.params:
            yield Violation(f"{group.path}.rayStartParams.labels", "is set", f"move them to {group.path}.labels")
        for key, value in section(group.body, "labels").items():
            if not names.LABEL_KEY.fullmatch(str(key)) or not names.LABEL_VALUE.fullmatch(str(value)):
                remedy = "letters, digits, '-', '_' and '.', at most 63 on each side"
                yield Violation(f"{group.path}.labels", f"{key}={value} is not a valid label", remedy)


def replicas(cluster: Cluster) -> Iterator[Violation]:
    """Smallest and largest number of workers are set and in order."""
    for group in cluster.workers:
        low, high = (group.body.get(key) for key in ("minReplicas", "maxReplicas"))
        if not cluster.autoscaling and (low is None or high is None):
            path = f"{group.path}.{'minReplicas' if low is None else 'maxReplicas'}"
            yield Violation(path, "is unset without an autoscaler", "set minReplicas and maxReplicas")
        for key, value in (("minReplicas", low), ("maxReplicas", high)):
            if isinstance(value, int) and value < 0:
                yield Violation(f"{group.path}.{key}", f"is {value}", "give 0 or more")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Violation(f"{group.path}.minReplicas", f"{low} is above maxReplicas {high}", "make it that or less")


def idle_timeout(cluster: Cluster) -> Iterator[Violation]:
    """Time-outs of idle workers are not negative; a group's own is for version 2 of the autoscaler."""
    whole = cluster.autoscaler.get("idleTimeoutSeconds")
    if isinstance(whole, int) and whole < 0:
        yield Violation(f"{cluster.path}.autoscalerOptions.idleTimeoutSeconds", f"is {whole}", "give 0 or more")
    for group in cluster.workers:
        path, value = f"{group.path}.idleTimeoutSeconds", group.body.get("idleTimeoutSeconds")
        if isinstance(value, int) and value < 0:
            yield Violation(path, f"is {value}", "give 0 or more")
        if value is not None and not cluster.v2:
            yield Violation(path, "needs autoscaler v2", "set autoscalerOptions.version: v2, or leave it out")


def priority(cluster: Cluster) -> Iterator[Violation]:
    """A group's priority needs Ray 2.56 and version 2 of the autoscaler."""
    for group in cluster.workers:
        if not group.body.get("priority"):
            continue
        path, problem = f"{group.path}.priority", f"is {group.body['priority']}"
        if cluster.version is None or cluster.version < (2, 56):
            yield Violation(path, f"{problem} with {_version(cluster)}", "it needs Ray 2.56; raise rayVersion")
        if not cluster.v2:
            yield Violation(
                path, f"{problem} without autoscaler v2", "set autoscalerOptions.version: v2, or leave it out"
            )


def redis_names(cluster: Cluster) -> Iterator[Violation]:
    """The name and address of a Redis belong in gcsFaultToleranceOptions alone."""
    options, head = f"{cluster.path}.gcsFaultToleranceOptions", cluster.head
    marked = cluster.annotations.get("ray.io/ft-enabled")
    if marked and "gcsFaultToleranceOptions" in cluster.spec:
        path = "metadata.annotations[ray.io/ft-enabled]"
        yield Violation(path, f"conflicts with {options}", "leave the annotation out")
    tolerant = "gcsFaultToleranceOptions" in cluster.spec or str(marked).lower() == "true"
    if "RAY_REDIS_ADDRESS" in head.ray.env and not tolerant:
        yield Violation(f"{head.ray.path}.env", "has RAY_REDIS_ADDRESS", f"give the address as {options}.redisAddress")
    for path, name in (
        (f"{head.path}.rayStartParams", "redis-username" if "redis-username" in head.params else ""),
        (f"{head.ray.path}.env", "REDIS_USERNAME" if "REDIS_USERNAME" in head.ray.env else ""),
    ):
        if name:
            yield Violation(path, f"has {name}", f"give the name as {options}.redisUsername")


def fault_tolerance(cluster: Cluster) -> Iterator[Violation]:
    """With gcsFaultToleranceOptions, nothing of it is said elsewhere."""
    if "gcsFaultToleranceOptions" not in cluster.spec:
        return
    options, head = f"{cluster.path}.gcsFaultToleranceOptions", cluster.head
    if "redis-password" in head.params:
        path = f"{head.path}.rayStartParams.redis-password"
        yield Violation(path, "is set", f"give it as {options}.redisPassword")
    for name, key in (("REDIS_PASSWORD", "redisPassword"), ("RAY_REDIS_ADDRESS", "redisAddress")):
        if name in head.ray.env:
            yield Violation(f"{head.ray.path}.env", f"has {name}", f"give it as {options}.{key}")
    if "ray.io/external-storage-namespace" in cluster.annotations:
        path = "metadata.annotations[ray.io/external-storage-namespace]"
        yield Violation(path, "is set", f"give it as {options}.externalStorageNamespace")


def autoscaler_version(cluster: Cluster) -> Iterator[Violation]:
    """The autoscaler's version is said once, and only where there is an autoscaler."""
    for group in cluster.groups:
        if V2_SWITCH not in group.ray.env:
            continue
        path = f"{group.ray.path}.env"
        if not cluster.autoscaling and is_true(group.ray.env[V2_SWITCH]):
            remedy = "set enableInTreeAutoscaling: true, or leave it out"
            yield Violation(path, f"has {V2_SWITCH} without an autoscaler", remedy)
        if cluster.autoscaler.get("version") is not None:
            yield Violation(path, f"has {V2_SWITCH} beside autoscalerOptions.version", "leave the variable out")


def restart_policy(cluster: Cluster) -> Iterator[Violation]:
    """Autoscaler v2 replaces pods itself."""
    for group in cluster.groups if cluster.autoscaling and cluster.v2 else []:
        policy = group.pod.get("restartPolicy")
        if policy not in {None, "Never"}:
            path = f"{group.pod_path}.restartPolicy"
            yield Violation(path, f"is {policy} with autoscaler v2", "make it Never, or leave it out")


def autoscaler_env(cluster: Cluster) -> Iterator[Violation]:
    """The autoscaler's command is the operator's."""
    if any(entry.get("name") == START_COMMAND for entry in items(cluster.autoscaler.get("env"))):
        yield Violation(f"{cluster.path}.autoscalerOptions.env", f"has {START_COMMAND}", "leave it to the operator")


def token(cluster: Cluster) -> Iterator[Violation]:
    """Token authentication needs Ray 2.52; by Kubernetes' own tokens Ray 2.55."""
    options, path = section(cluster.spec, "authOptions"), f"{cluster.path}.authOptions"
    mode, by_kubernetes = options.get("mode"), options.get("enableK8sTokenAuth") is True
    needed = (2, 55) if by_kubernetes else (2, 52)
    if (mode == "token" or by_kubernetes) and (cluster.version is None or cluster.version < needed):
        field = "enableK8sTokenAuth" if by_kubernetes else "mode"
        remedy = f"it needs Ray {needed[0]}.{needed[1]}; set rayVersion to the image's"
        yield Violation(f"{path}.{field}", f"is set with {_version(cluster)}", remedy)
    if by_kubernetes and mode != "token":
        yield Violation(f"{path}.enableK8sTokenAuth", f"is set with mode {mode}", "set mode: token")
    if by_kubernetes and options.get("secretName"):
        yield Violation(f"{path}.secretName", "is set with enableK8sTokenAuth", "leave one of the two out")


def _version(cluster: Cluster) -> str:
    version = cluster.spec.get("rayVersion")
    return "no rayVersion" if version is None else f"rayVersion {version!r}"


RULES = (
    containers,
    group_names,
    resources_once,
    labels,
    replicas,
    idle_timeout,
    priority,
    redis_names,
    fault_tolerance,
    autoscaler_version,
    restart_policy,
    autoscaler_env,
    token,
)
