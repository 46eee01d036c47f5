"""`sp500 cluster check` of good and of broken manifests."""

import json
from pathlib import Path

import pytest
import yaml

from sp500.commands.cluster import check

RAYCLUSTER = Path(__file__).parents[2] / "cluster" / "raycluster.yaml"
SERVICE = {
    "apiVersion": "ray.io/v1",
    "kind": "RayService",
    "metadata": {"name": "S"},
    "spec": {},
}


def test_clean_file_ends_with_0(capfd):
    assert check.main([str(RAYCLUSTER)]) == 0
    assert capfd.readouterr().out == "1 document checked, 0 broken rules\n"


def test_broken_rules_are_listed_by_file_kind_name_and_field_and_end_with_2(tmp_path, capfd):
    file = tmp_path / "several.yaml"
    documents = yaml.safe_load_all(RAYCLUSTER.read_text())
    cluster = next(one for one in documents if one["kind"] == "RayCluster")
    cluster["spec"]["rayVersion"] = "nightly"
    file.write_text(yaml.safe_dump_all([{"kind": "Namespace"}, cluster, SERVICE]))
    assert check.main([str(file), "--json"]) == check.BROKEN == 2
    documents = json.loads(capfd.readouterr().out)["documents"]
    assert [(one["kind"], one["name"]) for one in documents] == [("RayCluster", "sp500"), ("RayService", "S")]
    assert [one["path"] for one in documents[0]["violations"]] == ["spec.rayVersion"]
    assert "metadata.name" in {one["path"] for one in documents[1]["violations"]}
    assert check.main([str(file)]) == 2
    assert f"{file}: RayCluster sp500: spec.rayVersion" in capfd.readouterr().out


@pytest.mark.parametrize("text", ["kind: Pod\n", "", "a: [\n"])
def test_file_without_a_manifest_is_an_error(tmp_path, capfd, text):
    (tmp_path / "other.yaml").write_text(text)
    assert check.main([str(tmp_path / "other.yaml")]) == 2
    assert "other.yaml" in capfd.readouterr().err


def test_no_file_is_an_error(capfd):
    assert check.main([]) == 2
    assert "no file given" in capfd.readouterr().err
