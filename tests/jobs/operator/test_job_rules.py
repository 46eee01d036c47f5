"""Every rule of the operator for a RayJob: one change breaks it, and the message names field and way out."""

import pytest

from sp500.errors import ConfigError
from sp500.jobs.manifests import rules
from sp500.jobs.operator import job_rules
from sp500.jobs.operator.violation import OPEN

RULES = "spec/deletionStrategy/deletionRules"
CLUSTER = "spec/rayClusterSpec"
NONE = {"spec/deletionStrategy": ...}
SELECTED = NONE | {CLUSTER: ..., "spec/clusterSelector": {"ray.io/cluster": "sp500"}}


def rule(policy, seconds=0, **condition):
    return {"policy": policy, "condition": {"ttlSeconds": seconds, **(condition or {"jobStatus": "FAILED"})}}


def strategy(*policies):
    return {"spec/deletionStrategy": dict(zip(("onSuccess", "onFailure"), policies, strict=True))}


BROKEN = [
    ({"metadata/name": "a" * 48}, "metadata.name", ["48 characters", "47 at most"]),
    ({"metadata/name": "1st"}, "metadata.name", ["'1st' is not a valid name"]),
    ({"spec/suspend": True}, "spec.suspend", ["shutdownAfterJobFinishes: true"]),
    (
        {"spec/ttlSecondsAfterFinished": 60},
        "spec.ttlSecondsAfterFinished",
        ["is 60 without a shutdown", "deletionRules"],
    ),
    ({"spec/ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished", ["is -1", "0 or more"]),
    ({CLUSTER: ...}, "spec.rayClusterSpec", ["is unset", "clusterSelector"]),
    (SELECTED | {"spec/clusterSelector": {"ray.io/cluster": ""}}, "spec.clusterSelector[ray.io/cluster]", ["is empty"]),
    (
        SELECTED | {"spec/suspend": True, "spec/shutdownAfterJobFinishes": True},
        "spec.suspend",
        ["with spec.clusterSelector"],
    ),
    (
        SELECTED | {"spec/submissionMode": "SidecarMode", "spec/submitterPodTemplate": ...},
        "spec.submissionMode",
        ["SidecarMode with spec.clusterSelector"],
    ),
    (
        SELECTED | {"spec/backoffLimit": 2},
        "spec.backoffLimit",
        ["is 2 with spec.clusterSelector", "cluster of its own"],
    ),
    (
        {"spec/submissionMode": "InteractiveMode", "spec/backoffLimit": 2},
        "spec.backoffLimit",
        ["is 2 in InteractiveMode", "leave it out"],
    ),
    ({"spec/submissionMode": "SidecarMode"}, "spec.submitterPodTemplate", ["in SidecarMode"]),
    (
        {
            "spec/submissionMode": "SidecarMode",
            "spec/submitterPodTemplate": ...,
            "spec/submitterConfig": {"backoffLimit": 1},
        },
        "spec.submitterConfig",
        ["in SidecarMode"],
    ),
    (
        {
            "spec/submissionMode": "SidecarMode",
            "spec/submitterPodTemplate": ...,
            f"{CLUSTER}/headGroupSpec/template/spec/restartPolicy": "Always",
        },
        "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy",
        ["is Always in SidecarMode", "Never"],
    ),
    (
        {f"{CLUSTER}/authOptions/enableK8sTokenAuth": True},
        "spec.rayClusterSpec.authOptions.enableK8sTokenAuth",
        ["in a RayJob", "RayCluster alone"],
    ),
    (
        {f"{CLUSTER}/upgradeStrategy": {"type": "None"}},
        "spec.rayClusterSpec.upgradeStrategy",
        ["in the cluster of a RayJob"],
    ),
    (
        {f"{CLUSTER}/workerGroupSpecs/0/minReplicas": 9},
        "spec.rayClusterSpec.workerGroupSpecs[0].minReplicas",
        ["9 is above maxReplicas 1"],
    ),
    ({"spec/runtimeEnvYAML": "working_dir: ["}, "spec.runtimeEnvYAML", ["is not valid YAML", "runtime_env"]),
    (
        {"spec/activeDeadlineSeconds": 0, "spec/preRunningDeadlineSeconds": ...},
        "spec.activeDeadlineSeconds",
        ["is 0"],
    ),
    ({"spec/preRunningDeadlineSeconds": 0}, "spec.preRunningDeadlineSeconds", ["is 0", "1 or more"]),
    ({"spec/backoffLimit": -1}, "spec.backoffLimit", ["is -1", "0 or more"]),
    (
        {"spec/shutdownAfterJobFinishes": True},
        "spec.deletionStrategy.deletionRules",
        ["conflicts with shutdownAfterJobFinishes"],
    ),
    (
        {"spec/deletionStrategy/onSuccess": {"policy": "DeleteSelf"}},
        "spec.deletionStrategy.onSuccess",
        ["conflicts with deletionRules"],
    ),
    (strategy({"policy": "DeleteSelf"}, {}), "spec.deletionStrategy.onFailure.policy", ["is None", "DeleteCluster"]),
    (
        strategy({"policy": "DeleteNone"}, {"policy": "DeleteSelf"}) | {"spec/shutdownAfterJobFinishes": True},
        "spec.deletionStrategy.onSuccess.policy",
        ["DeleteNone beside shutdownAfterJobFinishes"],
    ),
    (
        {f"{RULES}/0": rule("DeleteSelf", 900, jobStatus="FAILED", jobDeploymentStatus="Failed")},
        "spec.deletionStrategy.deletionRules[0].condition",
        ["exactly one"],
    ),
    (
        {f"{RULES}/0": {"policy": "DeleteSelf", "condition": {}}},
        "spec.deletionStrategy.deletionRules[0].condition",
        ["exactly one"],
    ),
    ({f"{RULES}/0": rule("DeleteSelf", -1)}, "spec.deletionStrategy.deletionRules[0].condition.ttlSeconds", ["is -1"]),
    (
        {f"{RULES}/0": rule("DeleteNone"), f"{RULES}/3": rule("DeleteNone", 5)},
        "spec.deletionStrategy.deletionRules",
        ["DeleteNone on jobStatus FAILED more than once"],
    ),
    (
        {f"{RULES}/0": rule("DeleteSelf", 299, jobStatus="SUCCEEDED")},
        "spec.deletionStrategy.deletionRules[0].condition.ttlSeconds",
        ["299 lets DeleteSelf come before DeleteCluster", "300 or more"],
    ),
    (
        {f"{RULES}/0/condition/ttlSeconds": 301},
        "spec.deletionStrategy.deletionRules[1].condition.ttlSeconds",
        ["300 lets DeleteCluster come before DeleteWorkers", "301 or more"],
    ),
    (
        {f"{CLUSTER}/enableInTreeAutoscaling": True, f"{CLUSTER}/autoscalerOptions": {"version": "v2"}},
        "spec.deletionStrategy.deletionRules[0].policy",
        ["DeleteWorkers with an autoscaler", "DeleteCluster"],
    ),
    (
        SELECTED | {"spec/deletionStrategy": {"deletionRules": [rule("DeleteCluster")]}},
        "spec.deletionStrategy.deletionRules[0].policy",
        ["with spec.clusterSelector"],
    ),
    (
        SELECTED | strategy({"policy": "DeleteSelf"}, {"policy": "DeleteWorkers"}),
        "spec.deletionStrategy.onFailure.policy",
        ["DeleteWorkers with spec.clusterSelector"],
    ),
    ({"status/jobDeploymentStatus": "Waiting"}, "status.jobDeploymentStatus", ["outside InteractiveMode"]),
]


def test_good_job_breaks_no_rule(rayjob):
    assert rules.violations(rayjob) == []


@pytest.mark.parametrize(
    "changes",
    [
        SELECTED,
        {"spec/submissionMode": "HTTPMode", "spec/submitterPodTemplate": ...},
        {"spec/submissionMode": "SidecarMode", "spec/submitterPodTemplate": ...},
        NONE | {"spec/shutdownAfterJobFinishes": True, "spec/ttlSecondsAfterFinished": 60, "spec/suspend": True},
        strategy({"policy": "DeleteNone"}, {"policy": "DeleteWorkers"}),
        {f"{RULES}/0/condition/ttlSeconds": 300},
        {f"{RULES}/3": rule("DeleteSelf", 1)},
        {"spec/runtimeEnvYAML": "env_vars: {A: '1'}"},
        {"metadata/name": "a" * 47},
    ],
)
def test_other_good_jobs_break_no_rule(rayjob, changed, changes):
    assert rules.violations(changed(rayjob, changes)) == []


@pytest.mark.parametrize(("changes", "path", "words"), BROKEN)
def test_one_change_breaks_one_rule_whose_message_names_the_field(rayjob, changed, changes, path, words):
    found = [one for one in rules.violations(changed(rayjob, changes)) if not one.ours]
    assert {one.path for one in found} == {path}
    assert all(word in " ".join(map(str, found)) for word in words)


@pytest.mark.parametrize("rule", job_rules.RULES)
def test_every_rule_is_broken_by_some_change(rayjob, changed, rule):
    assert any(list(rule(changed(rayjob, row[0]))) for row in BROKEN)


def test_deletion_needs_its_gate(rayjob):
    (found,) = rules.violations(rayjob, OPEN - {"RayJobDeletionPolicy"})
    assert (found.path, "RayJobDeletionPolicy" in str(found)) == ("spec.deletionStrategy", True)


def test_check_lists_every_violation_with_kind_and_name(rayjob, changed):
    with pytest.raises(ConfigError) as caught:
        rules.check(changed(rayjob, {"spec/suspend": True, "spec/backoffLimit": -1}))
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["RayJob tune: spec.suspend", "RayJob tune: spec.backoffLimit"]


def test_other_kinds_have_no_rules():
    rules.check({"kind": "ConfigMap", "metadata": {"name": "Anything"}})
