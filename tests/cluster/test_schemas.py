"""Every document of cluster/, as the API server would read it: core kinds, the operator's kinds, unknown fields."""

import functools
import re

import core_schema
import crd_schema
import pytest
import yaml
from manifests import (
    CLUSTER,
    PAIRS,
    RAYCLUSTER,
    THIRD_PARTY,
    TREES,
    alone,
    crds,
    of_kind,
    parsed,
    pods,
    rendered,
    tree_id,
)

FILES = sorted(path for path in CLUSTER.rglob("*.yaml") if not path.is_symlink())
EACH_TREE = pytest.mark.parametrize("tree", [*TREES, *PAIRS], ids=tree_id)
# The oldest release in which all that is used here is on by default (matchLabelKeys of a pod affinity), and a new one.
RELEASES = ("1.31", "1.36")


def core(documents):
    return [
        one
        for one in documents
        if one["apiVersion"] != "ray.io/v1" and (one["apiVersion"], one["kind"]) not in THIRD_PARTY
    ]


@pytest.fixture(scope="module")
def raycluster_schema():
    return crd_schema.of_crd(crds() / "ray.io_rayclusters.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CLUSTER)))
def test_file_is_yaml_without_a_key_twice(path):
    assert parsed(path.read_text())


def test_key_that_stands_twice_is_refused():
    with pytest.raises(yaml.YAMLError, match=r"key twice: \['a'\]"):
        parsed("a: 1\nb: {c: 2}\na: 3\n")


def test_manifest_at_hand_is_the_one_in_the_base():
    assert RAYCLUSTER.is_symlink()
    assert RAYCLUSTER.resolve() == CLUSTER / "base" / "raycluster.yaml"


@pytest.mark.parametrize("release", RELEASES)
def test_core_documents_of_the_manifest_alone_fit_their_schemas(release):
    for document in core(alone()):
        core_schema.validate(document, release)


@EACH_TREE
@pytest.mark.parametrize("release", RELEASES)
def test_core_documents_of_a_tree_fit_their_schemas(tree, release):
    for document in core(rendered(tree)):
        core_schema.validate(document, release)


@EACH_TREE
@pytest.mark.parametrize("release", RELEASES)
def test_pods_of_a_tree_fit_the_schema_of_pods(tree, release):
    for cluster in of_kind(rendered(tree), "RayCluster"):
        for pod, _ in pods(cluster):
            core_schema.validate(pod, release)


def test_unknown_core_field_is_refused():
    [claim, *_] = core(alone())
    claim["spec"]["acessModes"] = ["ReadWriteOnce"]
    with pytest.raises(core_schema.ValidationError, match="acessModes"):
        core_schema.validate(claim, RELEASES[0])


def test_raycluster_alone_fits_its_crd(raycluster_schema):
    [cluster] = of_kind(alone(), "RayCluster")
    assert crd_schema.faults(cluster, raycluster_schema) == []


@EACH_TREE
def test_rayclusters_of_a_tree_fit_their_crd(tree, raycluster_schema):
    found = of_kind(rendered(tree), "RayCluster")
    assert found
    for cluster in found:
        assert crd_schema.faults(cluster, raycluster_schema) == []


@pytest.mark.parametrize(
    ("place", "value", "path"),
    [
        ("enableIntreeAutoscaling", True, "$.spec"),
        ("rayVersion", 2.6, "$.spec.rayVersion"),
        ("headGroupSpec.rayStartParams.num-cpus", 0, "$.spec.headGroupSpec.rayStartParams['num-cpus']"),
        ("autoscalerOptions.idleTimeoutSecond", 60, "$.spec.autoscalerOptions"),
        ("workerGroupSpecs", [{"template": {}, "minReplicas": 0, "maxReplicas": 1}], "$.spec.workerGroupSpecs[0]"),
    ],
)
def test_raycluster_with_a_fault_does_not_fit_its_crd(raycluster_schema, place, value, path):
    [cluster] = of_kind(alone(), "RayCluster")
    *way, last = place.split(".")
    functools.reduce(dict.__getitem__, way, cluster["spec"])[last] = value
    [fault] = crd_schema.faults(cluster, raycluster_schema)
    assert fault.startswith(f"{path}: ")


@EACH_TREE
def test_names_of_a_tree_are_names_and_stand_once(tree):
    """All there is to check of the kinds of others, whose schemas are not at hand (THIRD_PARTY)."""
    found = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered(tree)]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for _, _, name in found)


def test_kinds_of_others_come_from_the_queue_and_the_monitor_alone():
    found = {tree.name: {(one["apiVersion"], one["kind"]) for one in rendered(tree)} & THIRD_PARTY for tree in TREES}
    assert {name for name, kinds in found.items() if kinds} == {"gpu-kueue", "kueue", "monitoring"}
    assert set().union(*found.values()) == THIRD_PARTY
