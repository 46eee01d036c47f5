"""Every rule of the operator: one change breaks it, and the message names the field and what to do."""

import pytest

from sp500.errors import ConfigError
from sp500.jobs.operator import rules

HEAD, WORKER = "spec/headGroupSpec", "spec/workerGroupSpecs/0"
OF_JOB, OF_SERVICE = "spec/rayClusterSpec", "spec/rayClusterConfig"
# The manifest, what is changed in it, the path that the message begins with, and words in it.
BROKEN = [
    ("cluster", {"metadata/name": "a" * 54}, "metadata.name", "53 at most"),
    ("cluster", {"metadata/name": "Sp500"}, "metadata.name", "'Sp500'"),
    ("cluster", {"metadata/name": ...}, "metadata.name", "''"),
    ("cluster", {f"{HEAD}/template/spec/containers": []}, "spec.headGroupSpec.template.spec.containers", "is empty"),
    ("cluster", {f"{WORKER}/template/spec": {}}, "spec.workerGroupSpecs[0].template.spec.containers", "is empty"),
    ("cluster", {f"{WORKER}/minReplicas": -1}, "spec.workerGroupSpecs[0].minReplicas", "set 0 or more"),
    ("cluster", {f"{WORKER}/minReplicas": 5}, "spec.workerGroupSpecs[0].minReplicas", "above maxReplicas 4"),
    ("cluster", {"spec/rayVersion": "2.51.0"}, "spec.authOptions.mode", "Ray 2.52"),
    ("rayjob", {"metadata/name": "a" * 48}, "metadata.name", "47 at most"),
    ("rayjob", {"metadata/name": "1st"}, "metadata.name", "'1st'"),
    ("rayjob", {f"{OF_JOB}/workerGroupSpecs/0/minReplicas": 9}, f"{OF_JOB}.workerGroupSpecs[0].minReplicas", "above"),
    ("rayservice", {"metadata/name": "a" * 48}, "metadata.name", "47 at most"),
    ("rayservice", {f"{OF_SERVICE}/workerGroupSpecs": [{}]}, f"{OF_SERVICE}.workerGroupSpecs[0]", "add one"),
]
GOOD = [
    ("cluster", {}),
    ("cluster", {"metadata/name": "a" * 53}),
    ("cluster", {"metadata/name": ..., "metadata/generateName": "sp500-"}),
    ("rayservice", {}),
    ("rayjob", {}),
    ("rayjob", {"metadata/name": "a" * 47}),
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
    assert violation.path.startswith(path.replace("/", "."))
    assert words in str(violation)


def test_groups_of_one_name_are_both_named(cluster, changed):
    broken = rules.violations(changed(cluster, {"spec/workerGroupSpecs/1": cluster["spec"]["workerGroupSpecs"][0]}))
    assert [violation.path for violation in broken] == [f"spec.workerGroupSpecs[{at}].groupName" for at in (0, 1)]
    assert "'workers' is the name of several groups" in str(broken[0])


@pytest.mark.parametrize("key", ["minReplicas", "maxReplicas"])
def test_without_an_autoscaler_both_numbers_of_workers_are_required(cluster, changed, key):
    (violation,) = rules.violations(changed(cluster, {"spec/enableInTreeAutoscaling": False, f"{WORKER}/{key}": ...}))
    assert (violation.path, "without an autoscaler" in str(violation)) == (f"spec.workerGroupSpecs[0].{key}", True)


def test_check_lists_every_violation_with_kind_and_name(rayjob, changed):
    with pytest.raises(ConfigError) as caught:
        rules.check(changed(rayjob, {"metadata/name": "1st", f"{OF_JOB}/workerGroupSpecs/0/maxReplicas": 0}))
    lines = [line.split(" ")[:3] for line in str(caught.value).splitlines()]
    assert lines == [
        ["RayJob", "1st:", path] for path in ("metadata.name", "spec.rayClusterSpec.workerGroupSpecs[0].minReplicas")
    ]


@pytest.mark.parametrize("kind", ["ConfigMap", "RayCronJob"])
def test_other_kinds_have_no_rules(kind):
    rules.check({"kind": kind, "metadata": {"name": "Anything"}})
