import json
from copy import deepcopy

import pytest
import yaml

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "sp500-data", "namespace": "lab"}}
CLAIM["spec"] = {"storageClassName": "standard"}
MONITOR = {"kind": "PodMonitor", "metadata": {"name": "sp500", "namespace": "lab"}}
IMAGE = ["headGroupSpec", "template", "spec", "containers", 0, "image"]
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "sp500:2.60.0"}]}}}
WORKERS = {"groupName": "workers", "replicas": 2, "minReplicas": 1, "maxReplicas": 4}
RAY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "sp500", "namespace": "lab"},
    "spec": {"upgradeStrategy": {"type": "Recreate"}, "headGroupSpec": HEAD, "workerGroupSpecs": [WORKERS]},
}


@pytest.fixture
def overlay(cluster):
    """An overlay named `lab`, on a cluster without it; the operator acts each time its pods are listed."""
    folder = cluster.work / "cluster/overlays/lab"
    folder.mkdir(parents=True)
    render(folder, NAMESPACE, CLAIM, RAY)
    (cluster.folder / "raycluster.json").unlink()
    cluster.write("turns", {})
    return folder


def render(overlay, *documents):
    (overlay / "rendered.yaml").write_text(yaml.safe_dump_all(documents))


def changed(path, value):
    """The RayCluster with another value at a path."""
    ray = deepcopy(RAY)
    *parents, last = path
    body = ray["spec"]
    for key in parents:
        body = body[key]
    body[last] = value
    return ray


def head_uid(cluster):
    pods = [json.loads(path.read_text()) for path in (cluster.folder / "pods").iterdir()]
    [head] = [pod for pod in pods if pod["metadata"]["labels"].get("ray.io/node-type") == "head"]
    return head["metadata"]["uid"]


def stored(cluster):
    return json.loads((cluster.folder / "raycluster.json").read_text())


def test_overlay_is_applied_and_awaited(cluster, overlay):
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (0, "RayCluster sp500 in namespace lab is ready\n")
    assert err.splitlines() == [
        "namespace/lab created",
        "namespace/lab unchanged",
        "persistentvolumeclaim/sp500-data created",
        "raycluster/sp500 created",
    ]


def test_second_deploy_without_a_change_is_ready_and_keeps_the_pods(cluster, overlay):
    cluster.call("deploy", overlay)  # by the path of its folder
    uid = head_uid(cluster)
    assert cluster.call("deploy", "lab", "--timeout", "60")[0] == 0
    assert head_uid(cluster) == uid


def test_status_that_the_operator_left_at_an_older_generation_is_ready(cluster, overlay):
    cluster.call("deploy", "lab")
    uid = head_uid(cluster)
    render(overlay, NAMESPACE, CLAIM, changed(["workerGroupSpecs", 0, "maxReplicas"], 3))
    assert cluster.call("deploy", "lab", "--timeout", "60")[0] == 0
    ray = stored(cluster)
    assert ray["status"]["observedGeneration"] < ray["metadata"]["generation"]
    assert head_uid(cluster) == uid


def test_changed_pods_are_awaited_until_the_operator_has_replaced_them(cluster, overlay):
    cluster.call("deploy", "lab")
    uid = head_uid(cluster)
    render(overlay, NAMESPACE, CLAIM, changed(IMAGE, "sp500:2.61.0"))
    cluster.write("turns", {"asleep": 3, "uid": 10})  # the old pods are ready for a while
    code, _, err = cluster.call("deploy", "lab", "--timeout", "120")
    assert code == 0
    assert "not replaced the pods" in err
    assert head_uid(cluster) != uid


def test_change_to_a_cluster_whose_pods_are_never_replaced_is_ready_at_once(cluster, overlay):
    ray = changed(["upgradeStrategy", "type"], "None")
    render(overlay, NAMESPACE, CLAIM, ray)
    cluster.call("deploy", "lab")
    ray["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = "sp500:2.61.0"
    render(overlay, NAMESPACE, CLAIM, ray)
    assert cluster.call("deploy", "lab", "--timeout", "60")[0] == 0


@pytest.mark.parametrize("refused", ["claim", "kind"])
def test_overlay_that_is_refused_in_part_changes_nothing(cluster, overlay, refused):
    cluster.call("deploy", "lab")
    before = stored(cluster)
    claim = {**CLAIM, "spec": {"storageClassName": "fast"}} if refused == "claim" else CLAIM
    render(overlay, NAMESPACE, claim, changed(IMAGE, "sp500:2.61.0"), *([MONITOR] if refused == "kind" else []))
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (1, "")
    assert "nothing of it" in err
    assert ("another namespace" in err) is (refused == "claim")
    assert ('"sp500-data" is invalid' in err) is (refused == "claim")
    assert "storageClassName" not in err
    assert stored(cluster) == before


def test_first_deploy_that_is_refused_leaves_the_namespace_alone(cluster, overlay):
    render(overlay, NAMESPACE, CLAIM, RAY, MONITOR)
    code, _, err = cluster.call("deploy", "lab")
    assert code == 1
    assert "namespace/lab created" in err
    assert not (cluster.folder / "raycluster.json").exists()


def test_second_deploy_with_data_uploads_nothing_again(cluster, overlay, content):
    folder = cluster.work / "prices"
    folder.mkdir()
    (folder / "a.csv").write_text("date,close\n")
    for outcome in ("uploaded: 1 files", "the same files"):
        code, _, err = cluster.call("deploy", "lab", "--data", "prices")
        assert code == 0
        assert f"/data/prices {outcome}" in err
    assert content(cluster.data) == {"prices/a.csv": b"date,close\n"}
    assert not [name for name in cluster.pods if "transfer" in name]


def test_cluster_that_does_not_get_ready_is_reported_with_conditions_pods_claims_and_warnings(cluster, overlay):
    (cluster.folder / "turns.json").unlink()
    reason = {"reason": "FailedCreateHeadPod", "message": "exceeded quota"}
    condition = {"type": "ReplicaFailure", "status": "True", **reason}
    cluster.write("raycluster", {**RAY, "status": {"conditions": [condition]}})
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: 3Gi"}
    metadata = {"name": "sp500-head-x", "uid": "1", "labels": {"ray.io/cluster": "sp500", "ray.io/node-type": "head"}}
    pending = {"metadata": metadata, "status": {"conditions": [scheduled]}}
    (cluster.folder / "pods/head.json").write_text(json.dumps(pending))
    warning = {"type": "Warning", "reason": "ProvisioningFailed", "message": "no storage class"}
    about = {"kind": "PersistentVolumeClaim", "name": "sp500-data"}
    cluster.write("events", {"items": [{**warning, "involvedObject": about}]})
    code, _, err = cluster.call("deploy", "lab", "--timeout", "0")
    assert code == 1
    assert [line.rpartition(": ")[::2] for line in err.splitlines()[-3:]] == [
        ("  raycluster sp500: the operator cannot create the pods: FailedCreateHeadPod", "exceeded quota"),
        ("  pod sp500-head-x: Unschedulable: 0/1 nodes", "3Gi"),
        ("  persistentvolumeclaim sp500-data: ProvisioningFailed", "no storage class"),
    ]


def test_cluster_without_pods_or_without_the_operator_points_at_the_operator(cluster, overlay):
    cluster.write("turns", {"asleep": 9})
    assert "the operator run?" in cluster.call("deploy", "lab", "--timeout", "0")[2]
    (cluster.folder / "operator").unlink()
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (1, "")
    assert "helm upgrade" in err


def test_unknown_overlay_and_manifests_without_a_ray_cluster_are_refused(cluster, overlay):
    code, _, err = cluster.call("deploy", "lba")
    assert (code, "the overlays are: lab" in err) == (2, True)
    render(overlay, NAMESPACE, CLAIM)
    code, _, err = cluster.call("deploy", "lab")
    assert (code, "one RayCluster" in err) == (2, True)
    assert not cluster.calls("apply")
