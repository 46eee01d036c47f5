"""The CronJob that mirrors the runs claim: its pods, their way out, and its image next to another component's."""

from __future__ import annotations

import pod_rules
import pytest
from manifests import Document, of_kind, rendered

LABELS = {"app.kubernetes.io/part-of": "sp500", "app.kubernetes.io/name": "mlflow"}


def cronjob(*components: str) -> Document:
    [found] = of_kind(rendered(components), "CronJob")
    return found


def pod(*components: str) -> Document:
    template = cronjob(*components)["spec"]["jobTemplate"]["spec"]["template"]
    return {**template, "metadata": {**template["metadata"], "name": "mlflow"}}


@pytest.mark.parametrize("rule", [pod_rules.unrestricted, pod_rules.floating, pod_rules.unequal_memory])
def test_pod_of_the_mirror_keeps_the_rule(rule):
    assert rule(pod("mlflow")) == []


def test_pod_of_the_mirror_holds_no_token_and_can_write_no_run():
    spec = pod("mlflow")["spec"]
    [container] = spec["containers"]
    assert pod_rules.token_holders(pod("mlflow")) == []
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    [claim] = [one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one]
    assert claim == {"claimName": "sp500-runs", "readOnly": True}
    assert {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]} == {
        "/runs": True,
        "/tmp": False,
    }


def test_mirror_runs_one_at_a_time_with_the_credentials_of_a_secret_that_may_be_missing():
    assert cronjob("mlflow")["spec"]["concurrencyPolicy"] == "Forbid"
    [container] = pod("mlflow")["spec"]["containers"]
    assert container["command"] == ["sp500", "mlflow", "sync"]
    assert container["envFrom"] == [{"secretRef": {"name": "sp500-mlflow", "optional": True}}]
    assert {one["name"] for one in container["env"]} == {"SP500_RUNS_DIR", "MLFLOW_TRACKING_URI", "HOME"}


def test_network_lets_the_mirror_out_to_the_server_alone():
    documents = rendered(("mlflow",))
    [policy] = [one for one in of_kind(documents, "NetworkPolicy") if one["metadata"]["name"] == "mlflow"]
    assert policy["spec"]["podSelector"]["matchLabels"] == LABELS
    assert LABELS.items() <= pod("mlflow")["metadata"]["labels"].items()
    [rule] = policy["spec"]["egress"]
    assert [port["port"] for port in rule["ports"]] == [5000]
    assert all("namespaceSelector" in peer and "podSelector" in peer for peer in rule["to"])


@pytest.mark.parametrize("pair", [("gpu", "mlflow"), ("mlflow", "gpu")])
def test_image_of_the_mirror_is_its_own_next_to_gpus(pair):
    [cluster] = of_kind(rendered(pair), "RayCluster")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    images = {group["template"]["spec"]["containers"][0]["image"].rpartition(":")[2] for group in groups}
    assert images == {"2.60.0-gpu"}
    assert pod(*pair)["spec"]["containers"][0]["image"].endswith(":2.60.0-mlflow")
