"""Every rule of the operator: one change breaks it, and the message names the field and what to do."""

import pytest

from sp500.errors import ConfigError
from sp500.jobs.manifests.manifest import clusters
from sp500.jobs.operator import kuberay_rules, rules

HEAD = "spec/headGroupSpec"
WORKER = "spec/workerGroupSpecs/0"
SWITCH = {f"{HEAD}/template/spec/containers/0/env/2": {"name": "RAY_enable_autoscaler_v2", "value": "1"}}
RULES = "spec/deletionStrategy/deletionRules"
OF_JOB, OF_SERVICE = "spec/rayClusterSpec", "spec/rayClusterConfig"


def rule(policy, seconds=0, **condition):
    return {"policy": policy, "condition": {"ttlSeconds": seconds, **(condition or {"jobStatus": "FAILED"})}}


# The manifest, what is changed in it, the path that the message begins with, and words in it.
BROKEN = [
    ("cluster", {"metadata/name": "a" * 54}, "metadata.name", "54 characters; a RayCluster has 53 at most"),
    ("cluster", {"metadata/name": "Sp500"}, "metadata.name", "'Sp500' is not a valid name"),
    ("cluster", {"metadata/name": ...}, "metadata.name", "'' is not a valid name"),
    ("cluster", {"spec/upgradeStrategy": {"type": "Rolling"}}, "spec.upgradeStrategy.type", "Recreate, None"),
    ("cluster", {f"{HEAD}/template/spec/containers": []}, "spec.headGroupSpec.template.spec.containers", "is empty"),
    ("cluster", {f"{WORKER}/template/spec": {}}, "spec.workerGroupSpecs[0].template.spec.containers", "is empty"),
    ("cluster", {f"{WORKER}/minReplicas": -1}, "spec.workerGroupSpecs[0].minReplicas", "is -1; set 0 or more"),
    ("cluster", {f"{WORKER}/minReplicas": 5}, "spec.workerGroupSpecs[0].minReplicas", "5 is above maxReplicas 4"),
    (
        "cluster",
        {"spec/autoscalerOptions/idleTimeoutSeconds": -1},
        "spec.autoscalerOptions.idleTimeoutSeconds",
        "is -1",
    ),
    ("cluster", {f"{WORKER}/idleTimeoutSeconds": -1}, "spec.workerGroupSpecs[0].idleTimeoutSeconds", "is -1"),
    (
        "cluster",
        {"spec/autoscalerOptions/version": "v1"},
        "spec.workerGroupSpecs[0].idleTimeoutSeconds",
        "needs autoscaler v2",
    ),
    ("cluster", SWITCH, "spec.headGroupSpec.template.spec.containers[0].env", "RAY_enable_autoscaler_v2 as well as"),
    (
        "cluster",
        {f"{HEAD}/template/spec/restartPolicy": "Always"},
        "spec.headGroupSpec.template.spec.restartPolicy",
        "is Always with autoscaler v2",
    ),
    (
        "cluster",
        {f"{WORKER}/template/spec/restartPolicy": "OnFailure"},
        "spec.workerGroupSpecs[0].template.spec.restartPolicy",
        "is OnFailure",
    ),
    ("cluster", {"spec/rayVersion": "2.51.0"}, "spec.authOptions.mode", "rayVersion '2.51.0'; it needs Ray 2.52"),
    ("rayjob", {"metadata/name": "a" * 48}, "metadata.name", "48 characters; a RayJob has 47 at most"),
    ("rayjob", {"metadata/name": "1st"}, "metadata.name", "'1st' is not a valid name"),
    ("rayjob", {"spec/suspend": True}, "spec.suspend", "shutdownAfterJobFinishes: true"),
    ("rayjob", {"spec/ttlSecondsAfterFinished": 60}, "spec.ttlSecondsAfterFinished", "is 60 without a shutdown"),
    ("rayjob", {"spec/ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished", "is -1; set 0 or more"),
    ("rayjob", {OF_JOB: ...}, "spec.rayClusterSpec", "is unset"),
    (
        "rayjob",
        {"spec/submissionMode": "InteractiveMode", "spec/backoffLimit": 2},
        "spec.backoffLimit",
        "is 2 in InteractiveMode",
    ),
    (
        "rayjob",
        {f"{OF_JOB}/upgradeStrategy": {"type": "None"}},
        "spec.rayClusterSpec.upgradeStrategy",
        "in the cluster of a RayJob",
    ),
    (
        "rayjob",
        {f"{OF_JOB}/workerGroupSpecs/0/minReplicas": 9},
        "spec.rayClusterSpec.workerGroupSpecs[0].minReplicas",
        "9 is above maxReplicas 1",
    ),
    ("rayjob", {"spec/runtimeEnvYAML": "working_dir: ["}, "spec.runtimeEnvYAML", "is not valid YAML"),
    (
        "rayjob",
        {"spec/activeDeadlineSeconds": 0, "spec/preRunningDeadlineSeconds": ...},
        "spec.activeDeadlineSeconds",
        "is 0; set 1 or more",
    ),
    ("rayjob", {"spec/preRunningDeadlineSeconds": 0}, "spec.preRunningDeadlineSeconds", "is 0; set 1 or more"),
    ("rayjob", {"spec/backoffLimit": -1}, "spec.backoffLimit", "is -1; set 0 or more"),
    (
        "rayjob",
        {"spec/shutdownAfterJobFinishes": True},
        "spec.deletionStrategy.deletionRules",
        "conflicts with shutdownAfterJobFinishes",
    ),
    (
        "rayjob",
        {f"{OF_JOB}/enableInTreeAutoscaling": True, f"{OF_JOB}/autoscalerOptions": {"version": "v2"}},
        "spec.deletionStrategy.deletionRules[0].policy",
        "DeleteWorkers with an autoscaler",
    ),
    (
        "rayjob",
        {f"{RULES}/0": rule("DeleteSelf", 900, jobStatus="FAILED", jobDeploymentStatus="Failed")},
        "spec.deletionStrategy.deletionRules[0].condition",
        "exactly one",
    ),
    (
        "rayjob",
        {f"{RULES}/0": {"policy": "DeleteSelf", "condition": {}}},
        "spec.deletionStrategy.deletionRules[0].condition",
        "exactly one",
    ),
    (
        "rayjob",
        {f"{RULES}/0": rule("DeleteSelf", -1)},
        "spec.deletionStrategy.deletionRules[0].condition.ttlSeconds",
        "is -1",
    ),
    (
        "rayjob",
        {f"{RULES}/0": rule("DeleteNone"), f"{RULES}/3": rule("DeleteNone", 5)},
        "spec.deletionStrategy.deletionRules",
        "DeleteNone on jobStatus FAILED more than once",
    ),
    (
        "rayjob",
        {f"{RULES}/0": rule("DeleteSelf", 299, jobStatus="SUCCEEDED")},
        "spec.deletionStrategy.deletionRules[0].condition.ttlSeconds",
        "299 lets DeleteSelf come before DeleteCluster; set 300 or more",
    ),
    (
        "rayjob",
        {f"{RULES}/0/condition/ttlSeconds": 301},
        "spec.deletionStrategy.deletionRules[1].condition.ttlSeconds",
        "300 lets DeleteCluster come before DeleteWorkers; set 301 or more",
    ),
    ("rayservice", {"metadata/name": "a" * 48}, "metadata.name", "47 at most"),
    (
        "rayservice",
        {f"{OF_SERVICE}/workerGroupSpecs/0/minReplicas": -1},
        "spec.rayClusterConfig.workerGroupSpecs[0].minReplicas",
        "is -1",
    ),
    (
        "rayservice",
        {f"{OF_SERVICE}/upgradeStrategy": {"type": "Recreate"}},
        "spec.rayClusterConfig.upgradeStrategy",
        "in the cluster of a RayService",
    ),
    ("rayservice", {"spec/upgradeStrategy": {"type": "Recreate"}}, "spec.upgradeStrategy.type", "NewCluster"),
]
GOOD = [
    ("cluster", {}),
    ("cluster", {"metadata/name": "a" * 53}),
    ("cluster", {"metadata/name": ..., "metadata/generateName": "sp500-"}),
    ("rayservice", {}),
    ("rayservice", {"spec/upgradeStrategy": {"type": "NewCluster"}}),
    ("rayjob", {}),
    ("rayjob", {"metadata/name": "a" * 47}),
    ("rayjob", {"spec/deletionStrategy": ..., OF_JOB: ..., "spec/clusterSelector": {"ray.io/cluster": "sp500"}}),
    (
        "rayjob",
        {
            "spec/deletionStrategy": ...,
            "spec/shutdownAfterJobFinishes": True,
            "spec/ttlSecondsAfterFinished": 60,
            "spec/suspend": True,
        },
    ),
    ("rayjob", {f"{RULES}/0/condition/ttlSeconds": 300}),
    ("rayjob", {f"{RULES}/3": rule("DeleteSelf", 1)}),
    ("rayjob", {"spec/runtimeEnvYAML": "env_vars: {A: '1'}"}),
]


@pytest.fixture
def change(request, changed):
    """Changes the manifest of a fixture."""
    return lambda manifest, changes: changed(request.getfixturevalue(manifest), changes)


@pytest.mark.parametrize(("manifest", "changes"), GOOD)
def test_good_manifest_breaks_no_rule(change, manifest, changes):
    assert rules.violations(change(manifest, changes)) == []


@pytest.mark.parametrize(("manifest", "changes", "path", "words"), BROKEN)
def test_one_change_breaks_one_rule_whose_message_names_the_field(change, manifest, changes, path, words):
    (violation,) = [violation for violation in rules.violations(change(manifest, changes)) if not violation.ours]
    assert (violation.path, words in str(violation)) == (path, True)


def test_every_rule_is_broken_by_some_change(change, cluster):
    twice = ("cluster", {"spec/workerGroupSpecs/1": cluster["spec"]["workerGroupSpecs"][0]})
    documents = [change(*row[:2]) for row in [*BROKEN, twice]]
    by_kind = {
        kuberay_rules.DOCUMENT_RULES: documents,
        kuberay_rules.CLUSTER_RULES: [cluster for document in documents for cluster in clusters(document)],
        kuberay_rules.JOB_RULES: [document for document in documents if document["kind"] == "RayJob"],
    }
    unbroken = [
        rule.__name__
        for of_kind, subjects in by_kind.items()
        for rule in of_kind
        if not any(list(rule(subject)) for subject in subjects)
    ]
    assert unbroken == []


def test_groups_of_one_name_are_both_named(cluster, changed):
    broken = rules.violations(changed(cluster, {"spec/workerGroupSpecs/1": cluster["spec"]["workerGroupSpecs"][0]}))
    assert [violation.path for violation in broken] == [f"spec.workerGroupSpecs[{at}].groupName" for at in (0, 1)]
    assert "'workers' is the name of several groups" in str(broken[0])


@pytest.mark.parametrize("key", ["minReplicas", "maxReplicas"])
def test_without_an_autoscaler_both_numbers_of_workers_are_required(cluster, changed, key):
    (violation,) = rules.violations(changed(cluster, {"spec/enableInTreeAutoscaling": False, f"{WORKER}/{key}": ...}))
    assert (violation.path, "without an autoscaler" in str(violation)) == (f"spec.workerGroupSpecs[0].{key}", True)


def test_without_an_autoscaler_its_switch_is_refused(cluster, changed):
    off = {"spec/enableInTreeAutoscaling": False, "spec/autoscalerOptions": ..., f"{WORKER}/idleTimeoutSeconds": ...}
    (violation,) = rules.violations(changed(cluster, off | SWITCH))
    assert "RAY_enable_autoscaler_v2 without an autoscaler" in str(violation)


def test_switch_in_the_environment_counts_as_version_2(cluster, changed):
    switched = changed(cluster, SWITCH | {"spec/autoscalerOptions/version": ...})
    assert [violation for violation in rules.violations(switched) if not violation.ours] == []


def test_check_lists_every_violation_with_kind_and_name(rayjob, changed):
    with pytest.raises(ConfigError) as caught:
        rules.check(changed(rayjob, {"spec/suspend": True, "spec/backoffLimit": -1}))
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["RayJob tune: spec.suspend", "RayJob tune: spec.backoffLimit"]


@pytest.mark.parametrize("kind", ["ConfigMap", "RayCronJob"])
def test_other_kinds_have_no_rules(kind):
    rules.check({"kind": kind, "metadata": {"name": "Anything"}})
