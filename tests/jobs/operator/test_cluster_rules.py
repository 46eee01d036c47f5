"""Every rule of the operator for a Ray cluster: one change breaks it, and the message names field and way out."""

import pytest

from sp500.jobs.manifests import rules
from sp500.jobs.manifests.manifest import clusters
from sp500.jobs.operator import cluster_rules, feature_rules
from sp500.jobs.operator.violation import OPEN

HEAD = "spec/headGroupSpec"
WORKER = "spec/workerGroupSpecs/0"
HEAD_RAY = f"{HEAD}/template/spec/containers/0"
WORKER_RAY = f"{WORKER}/template/spec/containers/0"
V2 = {"name": "RAY_enable_autoscaler_v2", "value": "1"}
STORE = {"backend": "rocksdb", "storage": {"claimName": "gcs"}}
HISTORY = {"collectorOptions": {"image": "c:1", "env": [{"name": "STORAGE_BACKEND", "value": "S3"}]}}


def env(container, name, value="x"):
    """Adds a variable to a container of two."""
    return {f"{container}/env/2": {"name": name, "value": value}}


# What is changed in a good RayCluster, the path that the message begins with, and words in it.
BROKEN = [
    ({"metadata/name": "a" * 54}, "metadata.name", ["54 characters", "53 at most"]),
    ({"metadata/name": "Sp500"}, "metadata.name", ["'Sp500'", "a letter first"]),
    ({"metadata/name": ...}, "metadata.name", ["'' is not a valid name"]),
    ({"spec/upgradeStrategy": {"type": "Rolling"}}, "spec.upgradeStrategy.type", ["is Rolling", "Recreate, None"]),
    (
        {"spec/upgradeStrategy": {"type": "None"}, "metadata/labels": {"ray.io/originated-from-crd": "RayJob"}},
        "spec.upgradeStrategy",
        ["cluster of a RayJob", "leave it out"],
    ),
    (
        {
            "status/conditions": [
                {"type": "RayClusterSuspending", "status": "True"},
                {"type": "RayClusterSuspended", "status": "True"},
            ]
        },
        "status.conditions",
        ["both true"],
    ),
    ({f"{HEAD}/template/spec/containers": []}, "spec.headGroupSpec.template.spec.containers", ["is empty"]),
    ({f"{WORKER}/template/spec": {}}, "spec.workerGroupSpecs[0].template.spec.containers", ["is empty"]),
    (
        {f"{WORKER}/resources": {"CPU": "2"}, f"{WORKER}/rayStartParams/num-cpus": "2"},
        "spec.workerGroupSpecs[0].rayStartParams.num-cpus",
        ["duplicates spec.workerGroupSpecs[0].resources", "one of the two"],
    ),
    ({f"{HEAD}/rayStartParams/labels": "a=b"}, "spec.headGroupSpec.rayStartParams.labels", ["headGroupSpec.labels"]),
    ({f"{WORKER}/labels": {"a": "b c"}}, "spec.workerGroupSpecs[0].labels", ["a=b c is not a valid label"]),
    ({f"{WORKER}/labels": {"-a": "b"}}, "spec.workerGroupSpecs[0].labels", ["-a=b is not a valid label"]),
    ({f"{WORKER}/minReplicas": -1}, "spec.workerGroupSpecs[0].minReplicas", ["is -1", "0 or more"]),
    ({f"{WORKER}/minReplicas": 5}, "spec.workerGroupSpecs[0].minReplicas", ["5 is above maxReplicas 4"]),
    (
        {"spec/autoscalerOptions/idleTimeoutSeconds": -1},
        "spec.autoscalerOptions.idleTimeoutSeconds",
        ["is -1", "0 or more"],
    ),
    ({f"{WORKER}/idleTimeoutSeconds": -1}, "spec.workerGroupSpecs[0].idleTimeoutSeconds", ["is -1"]),
    (
        {"spec/autoscalerOptions/version": "v1"},
        "spec.workerGroupSpecs[0].idleTimeoutSeconds",
        ["needs autoscaler v2", "version: v2"],
    ),
    (
        {f"{WORKER}/priority": 3, "spec/rayVersion": "2.55.1"},
        "spec.workerGroupSpecs[0].priority",
        ["is 3 with rayVersion '2.55.1'", "Ray 2.56"],
    ),
    (
        {f"{WORKER}/priority": 3, "spec/autoscalerOptions/version": "v1", f"{WORKER}/idleTimeoutSeconds": ...},
        "spec.workerGroupSpecs[0].priority",
        ["without autoscaler v2"],
    ),
    (
        {"metadata/annotations": {"ray.io/ft-enabled": "true"}, "spec/gcsFaultToleranceOptions": {}},
        "metadata.annotations[ray.io/ft-enabled]",
        ["spec.gcsFaultToleranceOptions", "leave the annotation out"],
    ),
    (
        env(HEAD_RAY, "RAY_REDIS_ADDRESS"),
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["RAY_REDIS_ADDRESS", "gcsFaultToleranceOptions.redisAddress"],
    ),
    (
        env(HEAD_RAY, "RAY_REDIS_ADDRESS") | {"spec/gcsFaultToleranceOptions": {}},
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["RAY_REDIS_ADDRESS", "redisAddress"],
    ),
    (
        env(HEAD_RAY, "REDIS_PASSWORD") | {"spec/gcsFaultToleranceOptions": {}},
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["REDIS_PASSWORD", "redisPassword"],
    ),
    (
        {f"{HEAD}/rayStartParams/redis-password": "x", "spec/gcsFaultToleranceOptions": {}},
        "spec.headGroupSpec.rayStartParams.redis-password",
        ["redisPassword"],
    ),
    (
        {
            "metadata/annotations": {"ray.io/external-storage-namespace": "x"},
            "spec/gcsFaultToleranceOptions": {},
        },
        "metadata.annotations[ray.io/external-storage-namespace]",
        ["externalStorageNamespace"],
    ),
    (
        {f"{HEAD}/rayStartParams/redis-username": "x"},
        "spec.headGroupSpec.rayStartParams",
        ["redis-username", "redisUsername"],
    ),
    (
        env(HEAD_RAY, "REDIS_USERNAME"),
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["REDIS_USERNAME", "redisUsername"],
    ),
    (
        env(HEAD_RAY, **V2),
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["RAY_enable_autoscaler_v2", "beside autoscalerOptions.version"],
    ),
    (
        {f"{HEAD}/template/spec/restartPolicy": "Always"},
        "spec.headGroupSpec.template.spec.restartPolicy",
        ["is Always with autoscaler v2", "Never"],
    ),
    (
        {f"{WORKER}/template/spec/restartPolicy": "OnFailure"},
        "spec.workerGroupSpecs[0].template.spec.restartPolicy",
        ["is OnFailure"],
    ),
    (
        {"spec/autoscalerOptions/env": [{"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}]},
        "spec.autoscalerOptions.env",
        ["KUBERAY_GEN_AUTOSCALER_START_CMD"],
    ),
    ({"spec/rayVersion": "2.51.0"}, "spec.authOptions.mode", ["rayVersion '2.51.0'", "Ray 2.52"]),
    (
        {"spec/rayVersion": "2.54.0", "spec/authOptions/enableK8sTokenAuth": True},
        "spec.authOptions.enableK8sTokenAuth",
        ["Ray 2.55"],
    ),
    (
        {"spec/authOptions": {"mode": "disabled", "enableK8sTokenAuth": True}},
        "spec.authOptions.enableK8sTokenAuth",
        ["with mode disabled", "mode: token"],
    ),
    (
        {"spec/authOptions": {"mode": "token", "enableK8sTokenAuth": True, "secretName": "x"}},
        "spec.authOptions.secretName",
        ["with enableK8sTokenAuth"],
    ),
    ({f"{WORKER}/suspend": True}, "spec.workerGroupSpecs[0].suspend", ["with an autoscaler"]),
    (
        {"spec/gcsFaultToleranceOptions": {"storage": {"size": "1Gi"}}},
        "spec.gcsFaultToleranceOptions.storage",
        ["for backend redis", "rocksdb"],
    ),
    (
        {"spec/gcsFaultToleranceOptions": STORE | {"redisAddress": "x"}},
        "spec.gcsFaultToleranceOptions.redisAddress",
        ["for backend rocksdb"],
    ),
    (
        {"spec/gcsFaultToleranceOptions": STORE | {"storage": {"claimName": "gcs", "size": "1Gi"}}},
        "spec.gcsFaultToleranceOptions.storage.size",
        ["conflicts with claimName"],
    ),
    (
        {"spec/gcsFaultToleranceOptions": STORE} | env(HEAD_RAY, "RAY_gcs_storage_path"),
        "spec.headGroupSpec.template.spec.containers[0].env",
        ["RAY_gcs_storage_path"],
    ),
    (
        {"spec/gcsFaultToleranceOptions": STORE, f"{HEAD}/template/spec/volumes/2": {"name": "gcs-storage"}},
        "spec.headGroupSpec.template.spec.volumes",
        ["gcs-storage"],
    ),
    (
        {"spec/gcsFaultToleranceOptions": STORE, f"{HEAD_RAY}/volumeMounts/0/mountPath": "/data/gcs"},
        "spec.headGroupSpec.template.spec.containers[0].volumeMounts",
        ["/data/gcs", "elsewhere"],
    ),
    (
        {"spec/historyServerOptions": HISTORY, "spec/historyServerOptions/collectorOptions/image": ""},
        "spec.historyServerOptions.collectorOptions.image",
        ["is unset"],
    ),
    (
        {"spec/historyServerOptions": {"collectorOptions": {"image": "c:1"}}},
        "spec.historyServerOptions.collectorOptions.env",
        ["STORAGE_BACKEND", "GCS, S3, AZUREBLOB, ALIYUNOSS"],
    ),
    (
        {"spec/historyServerOptions": HISTORY, f"{HEAD_RAY}/name": "ray-history-collector"},
        "spec.headGroupSpec.template.spec.containers[0].name",
        ["operator's collector"],
    ),
    (
        {"spec/networkPolicy": {"mode": "DenyAllEgress", "head": {"ingressRules": [{}]}}},
        "spec.networkPolicy.head.ingressRules",
        ["in mode DenyAllEgress"],
    ),
    (
        {"spec/networkPolicy": {"mode": "DenyAllIngress", "worker": {"egressRules": [{}]}}},
        "spec.networkPolicy.worker.egressRules",
        ["in mode DenyAllIngress"],
    ),
    (
        {"spec/networkPolicy": {"workerGroups": [{"groupName": "others"}]}},
        "spec.networkPolicy.workerGroups[0].groupName",
        ["'others' is not a worker group", "workers"],
    ),
    (
        {"spec/networkPolicy": {}, f"{WORKER}/groupName": "Workers"},
        "spec.workerGroupSpecs[0].groupName",
        ["'Workers' is not a valid name"],
    ),
    (
        {"spec/tlsOptions": {"enabled": True}} | env(WORKER_RAY, "RAY_TLS_CA_CERT"),
        "spec.workerGroupSpecs[0].template.spec.containers[0].env",
        ["RAY_TLS_CA_CERT", "beside tlsOptions"],
    ),
    (
        {"spec/tlsOptions": {}, "spec/autoscalerOptions/env": [{"name": "RAY_USE_TLS"}]},
        "spec.autoscalerOptions.env",
        ["RAY_USE_TLS"],
    ),
    (
        {"spec/tlsOptions": {}, f"{HEAD}/template/spec/volumes/2": {"name": "ray-tls"}},
        "spec.headGroupSpec.template.spec.volumes",
        ["ray-tls"],
    ),
]
# With every gate open, so that a row breaks its own rule alone.
GATES = OPEN | {
    "GCSFaultToleranceEmbeddedStorage",
    "RayClusterHistoryServer",
    "RayClusterNetworkPolicy",
    "RayClusterMTLS",
}
GATED = [
    ({"spec/gcsFaultToleranceOptions": STORE}, "spec.gcsFaultToleranceOptions.backend", "GCSFaultToleranceEmbedded"),
    ({"spec/historyServerOptions": HISTORY}, "spec.historyServerOptions", "RayClusterHistoryServer"),
    ({"spec/networkPolicy": {}}, "spec.networkPolicy", "RayClusterNetworkPolicy"),
    ({"spec/tlsOptions": {"enabled": True}}, "spec.tlsOptions", "RayClusterMTLS"),
]


def test_good_cluster_breaks_no_rule(cluster):
    assert rules.violations(cluster) == []


@pytest.mark.parametrize(("changes", "path", "words"), BROKEN)
def test_one_change_breaks_one_rule_whose_message_names_the_field(cluster, changed, changes, path, words):
    found = rules.violations(changed(cluster, changes), GATES)
    assert {one.path for one in found if not one.ours} == {path}
    assert all(word in " ".join(map(str, found)) for word in words)


@pytest.mark.parametrize("rule", cluster_rules.RULES)
def test_every_rule_is_broken_by_some_change(cluster, changed, rule):
    several = [{f"{WORKER}/replicas": 1, "spec/workerGroupSpecs/1": {**cluster["spec"]["workerGroupSpecs"][0]}}]
    changes = [row[0] for row in BROKEN] + several
    assert any(list(rule(one)) for change in changes for one in clusters(changed(cluster, change)))


@pytest.mark.parametrize("rule", feature_rules.RULES)
def test_every_rule_of_a_feature_is_broken_by_some_change(cluster, changed, rule):
    found = (list(rule(one, GATES)) for row in BROKEN for one in clusters(changed(cluster, row[0])))
    assert any(found)


@pytest.mark.parametrize(("changes", "path", "gate"), GATED)
def test_feature_behind_a_closed_gate_is_refused_by_the_gates_name(cluster, changed, changes, path, gate):
    document = changed(cluster, changes)
    (found,) = rules.violations(document)
    assert (found.path, gate in str(found)) == (path, True)
    assert rules.violations(document, GATES) == []


def test_groups_of_one_name_are_both_named(cluster, changed):
    found = rules.violations(changed(cluster, {"spec/workerGroupSpecs/1": cluster["spec"]["workerGroupSpecs"][0]}))
    assert [one.path for one in found] == [f"spec.workerGroupSpecs[{at}].groupName" for at in (0, 1)]
    assert "'workers' is the name of several groups" in str(found[0])


@pytest.mark.parametrize("key", ["minReplicas", "maxReplicas"])
def test_without_an_autoscaler_both_ends_are_set(cluster, changed, key):
    alone = {"spec/enableInTreeAutoscaling": False, f"{WORKER}/{key}": ...}
    (found,) = rules.violations(changed(cluster, alone))
    assert (found.path, "without an autoscaler" in str(found)) == (f"spec.workerGroupSpecs[0].{key}", True)


def test_without_an_autoscaler_its_switch_is_refused(cluster, changed):
    off = {"spec/enableInTreeAutoscaling": False, "spec/autoscalerOptions": ...}
    off |= {f"{WORKER}/idleTimeoutSeconds": ...} | env(HEAD_RAY, **V2)
    (found,) = rules.violations(changed(cluster, off))
    assert "RAY_enable_autoscaler_v2 without an autoscaler" in str(found)


def test_switch_in_the_environment_counts_as_version_2(cluster, changed):
    switched = env(HEAD_RAY, **V2) | {"spec/autoscalerOptions/version": ...}
    assert [one for one in rules.violations(changed(cluster, switched)) if not one.ours] == []


def test_suspended_group_needs_its_gate_even_without_an_autoscaler(cluster, changed):
    alone = changed(cluster, {f"{WORKER}/suspend": True, "spec/enableInTreeAutoscaling": False})
    assert rules.violations(alone) == []
    (found,) = rules.violations(alone, OPEN - {"RayJobDeletionPolicy"})
    assert "RayJobDeletionPolicy" in str(found)


def test_longest_name_is_accepted_and_a_generated_one_left_to_the_server(cluster, changed):
    assert rules.violations(changed(cluster, {"metadata/name": "a" * 53})) == []
    assert rules.violations(changed(cluster, {"metadata/name": ..., "metadata/generateName": "sp500-"})) == []
