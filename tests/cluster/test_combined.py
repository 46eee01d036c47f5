"""Components beside each other: in either order the same, and what each of them changes is there."""

import itertools
import json
import os
import re
import textwrap
from collections import Counter

import pytest
import yaml
from manifests import CLUSTER, COMPONENTS, PAIRS, of_kind, rendered, tree_id

from sp500.jobs.manifests import rules

EACH_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=tree_id)
# The request follows the limit, so with GPUs it is another than without.
FOLLOWS = {("shared-storage", "containers.resources.requests.cpu")}


def leaves(document, path=()):
    """Every value with the keys above it; where in a list it stands does not matter."""
    if isinstance(document, list):
        return [leaf for part in document for leaf in leaves(part, path)]
    if isinstance(document, dict):
        return [leaf for key, part in document.items() for leaf in leaves(part, (*path, key))]
    return [(".".join(path), document)]


def values(documents):
    return Counter((one["kind"], one["metadata"]["name"], *leaf) for one in documents for leaf in leaves(one))


def sorted_lists(document):
    if isinstance(document, list):
        return sorted((sorted_lists(part) for part in document), key=lambda part: json.dumps(part, sort_keys=True))
    if isinstance(document, dict):
        return {key: sorted_lists(part) for key, part in document.items()}
    return document


@EACH_PAIR
def test_components_in_either_order_are_the_same(pair):
    assert sorted_lists(rendered(pair)) == sorted_lists(rendered(pair[::-1]))


@EACH_PAIR
@pytest.mark.parametrize("side", [0, 1])
def test_component_beside_another_changes_what_it_changes_alone(pair, side):
    base, one, both = values(rendered(())), values(rendered(pair[side : side + 1])), values(rendered(pair))
    added = [key for key in one - base if not any(pair[side] == name and end in key[2] for name, end in FOLLOWS)]
    assert added
    assert [key for key in added if both[key] < one[key]] == []
    assert [key for key in base - one if both[key] >= base[key]] == []


@EACH_PAIR
def test_workers_of_components_together_keep_the_operators_rules(pair):
    [cluster] = of_kind(rendered(pair), "RayCluster")
    assert rules.violations(cluster) == []


def test_workers_that_have_gpus_on_shared_storage_ask_for_the_cpus_of_their_limit():
    for pair in itertools.permutations(("gpu", "shared-storage")):
        [cluster] = of_kind(rendered(pair), "RayCluster")
        [ray] = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
        assert ray["resources"]["requests"]["cpu"] == ray["resources"]["limits"]["cpu"]
        assert ray["resources"]["limits"]["cpu"] == "4"


def test_all_components_but_kind_together_keep_every_toleration_and_both_affinities():
    together = rendered(tuple(name for name in COMPONENTS if name != "kind"))
    [cluster] = of_kind(together, "RayCluster")
    worker = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert len(worker["tolerations"]) == 4
    assert worker["affinity"].keys() == {"nodeAffinity", "podAffinity"}


def test_overlay_that_the_readme_shows_brings_its_registry_its_class_and_both_components(tmp_path):
    text = (CLUSTER / "README.md").read_text()
    shown = textwrap.dedent(re.search(r"(?m)^    apiVersion: kustomize(.*\n)+?(?=\n)", text)[0])
    here = os.path.relpath(CLUSTER, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(shown.replace("../..", here).replace("REGISTRY", "example.com"))
    documents = rendered(tmp_path)
    [cluster] = of_kind(documents, "RayCluster")
    worker = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    claims = [one["spec"] for one in of_kind(documents, "PersistentVolumeClaim")]
    assert worker["containers"][0]["image"] == "example.com/sp500:2.60.0"
    assert [(one["storageClassName"], one["accessModes"]) for one in claims] == [("efs-sc", ["ReadWriteMany"])] * 2
    assert "nodeAffinity" in worker["affinity"]


@pytest.mark.parametrize("name", COMPONENTS)
def test_overlay_of_a_component_is_the_base_and_nothing_of_its_own(name):
    overlay = yaml.safe_load((CLUSTER / "overlays" / name / "kustomization.yaml").read_text())
    assert overlay.keys() == {"apiVersion", "kind", "resources", "components"}
    assert (overlay["resources"], overlay["components"]) == (["../../base"], [f"../../components/{name}"])
