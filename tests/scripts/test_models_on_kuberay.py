"""Models of a cluster's runs claim: the verbs run in a pod, on the claim's own files."""

import json
import sys
from pathlib import Path

import forks
import pytest

import sp500

SERVICE = Path(__file__).parents[2] / "cluster" / "rayservice.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "runs"
    sp500.train(name="m1", task="synthetic", synthetic={"samples": 300}, train={"epochs": 1}, runs_dir=folder)
    return folder


@pytest.fixture
def models(cluster, trained):
    bin_folder = cluster.folder / "bin"
    python = bin_folder / "python"  # which the pod's image has
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def called(*words):
        command = ["sp500", "models", *words, "--on", "kuberay", "--runs-dir", str(trained)]
        done = forks.run(command, cwd=cluster.work, env=cluster.environment)
        return done.returncode, done.stdout, done.stderr

    return called


def serve(cluster, *words, **environment):
    command = ["sp500", "serve", *words, "--on", "kuberay", "--manifest", str(SERVICE)]
    done = forks.run(command, cwd=cluster.work, env=cluster.environment | environment)
    return done.returncode, done.stdout, done.stderr


def stored(cluster, kind):
    return {path.stem: json.loads(path.read_text()) for path in (cluster.folder / "objects" / kind).glob("*.json")}


def test_server_is_applied_with_a_key_that_no_argument_shows(cluster):
    code, out, err = serve(cluster, "other", "--image", "registry/mine:1", SP500_API_KEY="of-mine")
    assert code == 0, err
    assert out.startswith("model other answers in namespace sp500:\n  kubectl --namespace=sp500 port-forward ")
    assert stored(cluster, "Secret")["sp500-serve"]["stringData"] == {"key": "of-mine"}
    assert "of-mine" not in (cluster.folder / "log").read_text() + out + err
    service = stored(cluster, "RayService")["sp500-serve"]
    assert "name: other" in service["spec"]["serveConfigV2"]
    assert json.dumps(service).count("registry/mine:1") == 2
    assert set(stored(cluster, "PersistentVolumeClaim")) == {"sp500-data", "sp500-runs"}


def test_claims_and_key_that_exist_stay_as_they_are(cluster):
    folder = cluster.folder / "objects"
    for kind, name in (("PersistentVolumeClaim", "sp500-runs"), ("Secret", "sp500-serve")):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / f"{name}.json").write_text(json.dumps({"kind": kind, "mine": True}))
    code, _, err = serve(cluster, SP500_API_KEY="another")
    assert (code, "key is kept" in err) == (0, True)
    assert stored(cluster, "PersistentVolumeClaim")["sp500-runs"]["mine"]
    assert stored(cluster, "Secret")["sp500-serve"]["mine"]


def test_flags_of_other_servers_are_refused_by_name(cluster):
    code, _, err = serve(cluster, "--port", "8123")
    assert (code, "--port: not with --on kuberay" in err) == (2, True)


def test_name_that_is_a_path_is_refused_before_anything_is_sent(cluster, models):
    for name in ("m1/", ".."):
        code, _, err = models("promote", name)
        assert (code, "name of a run" in err) == (2, True)
    assert not (cluster.folder / "log").exists() or cluster.calls("exec") == []


def test_run_that_has_not_ended_is_not_sent(cluster, models, trained):
    (trained / "begun").mkdir(exist_ok=True)
    (trained / "begun" / "config.yaml").write_text("")
    code, _, err = models("promote", "begun")
    assert (code, "has no record.json" in err) == (2, True)
    assert not (cluster.runs / "begun").exists()


def test_run_is_sent_once_and_promoted_on_the_claim_and_a_refusal_there_is_told(cluster, models, trained):
    code, out, err = models("promote", "m1")
    assert code == 0, err
    assert "run m1 is sent" in err
    assert out.splitlines()[0] == "main"
    assert json.loads((cluster.runs / ".models" / "main.json").read_text())["versions"][0]["run"] == "m1"
    here = {path.relative_to(trained).as_posix() for path in (trained / "m1").rglob("*")}
    there = {path.relative_to(cluster.runs).as_posix() for path in (cluster.runs / "m1").rglob("*")}
    assert here - there <= {"m1/.lock", "m1/.holder"}
    assert (cluster.runs / "m1" / "checkpoints" / "best").is_symlink()
    assert cluster.pods == []
    assert not (trained / ".models").exists()

    code, _, err = models("promote", "m1", "--model", "other")
    assert (code, "exists already" in err) == (0, True)
    code, out, _ = models("list", "--json")
    assert [one["name"] for one in json.loads(out)["models"]] == ["main", "other"]
    code, _, err = models("rollback")
    assert code == 2
    assert err.splitlines()[-1] == "ConfigError: model main has no champion before this one"


def test_other_run_of_that_name_is_kept(cluster, models):
    (cluster.runs / "m1").mkdir()
    (cluster.runs / "m1" / "record.json").write_text("{}")
    code, _, err = models("promote", "m1")
    assert (code, "is another" in err) == (3, True)
    assert [path.name for path in (cluster.runs / "m1").iterdir()] == ["record.json"]


def test_kubeconfig_that_is_not_there_is_named(cluster):
    nowhere = str(cluster.folder / "nowhere")
    code, _, err = serve(cluster, KUBECONFIG=nowhere)
    assert (code, err.splitlines()[-1]) == (2, f"ConfigError: KUBECONFIG names {nowhere}, which is not there")
