"""The RayService that is printed, and the one that is applied."""

import json
from pathlib import Path

import pytest
import yaml

from sp500.cli import main
from sp500.commands.serving import kuberay
from sp500.errors import ConfigError

CLUSTER = Path(__file__).parents[2] / "cluster"


def test_service_is_printed_for_a_model_and_an_image(capfd):
    words = ["--cluster", str(CLUSTER / "raycluster.yaml"), "--model", "other", "--image", "mine:1"]
    assert main(["jobs", "render", "--serve", *words, "--json"]) == 0
    [service] = json.loads(capfd.readouterr().out)["documents"]
    assert service["kind"] == "RayService"
    assert yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]["name"] == "other"
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == "mine:1"


def test_flags_of_jobs_are_refused(capfd):
    with pytest.raises(SystemExit) as end:
        main(["jobs", "render", "--serve", "--workers", "3"])
    assert end.value.code == 2
    assert "--workers" in capfd.readouterr().err


def test_manifest_is_applied_with_the_model_that_is_asked_for():
    documents = kuberay.load(CLUSTER / "rayservice.yaml", "other")
    assert [one["kind"] for one in documents].count("PersistentVolumeClaim") == 2
    [service] = [one for one in documents if one["kind"] == "RayService"]
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["args"] == {"name": "other", "key_file": "/etc/sp500/serve/key"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "name: sp500-serve\n  labels:\n    app.kubernetes.io/name: serve",
            "name: mine\n  labels:\n    a: b",
            "expected sp500-serve",
        ),
        ("serveConfigV2: |", "serveConfigV3: |", "has 0 applications"),
        ("proxy_location: EveryNode", "proxy_location: [", "spec.serveConfigV2 is not valid YAML"),
        ("kind: RayService\n", "", "a document lacks kind or metadata.name"),
    ],
)
def test_manifest_of_another_shape_is_refused_by_field(tmp_path, old, new, problem):
    text = (CLUSTER / "rayservice.yaml").read_text()
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=problem):
        kuberay.load(tmp_path / "mine.yaml", "main")


def test_manifest_without_a_service_is_refused(tmp_path, capfd):
    with pytest.raises(ConfigError, match="kind RayService"):
        kuberay.load(CLUSTER / "raycluster.yaml", "main")
    assert main(["serve", "--on", "kuberay", "--manifest", str(tmp_path / "nothing.yaml")]) == 2
    assert "--manifest" in capfd.readouterr().err
