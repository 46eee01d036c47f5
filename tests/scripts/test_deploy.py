import json
from copy import deepcopy

import pytest
import yaml

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "sp500-data", "namespace": "lab"},
    "spec": {"storageClassName": "standard"},
}
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


def test_path_of_a_folder_is_an_overlay(cluster, overlay):
    assert cluster.call("deploy", overlay)[0] == 0


def test_second_deploy_without_a_change_is_ready_and_keeps_the_pods(cluster, overlay):
    cluster.call("deploy", "lab")
    uid = head_uid(cluster)
    code, out, _ = cluster.call("deploy", "lab", "--timeout", "60")
    assert (code, out) == (0, "RayCluster sp500 in namespace lab is ready\n")
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
    image = ["headGroupSpec", "template", "spec", "containers", 0, "image"]
    render(overlay, NAMESPACE, CLAIM, changed(image, "sp500:2.61.0"))
    cluster.write("turns", {"asleep": 3, "uid": 10})  # the old pods are ready for a while
    code, _, err = cluster.call("deploy", "lab", "--timeout", "120")
    assert code == 0
    assert "the operator has not replaced the pods yet" in err
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
    image = ["headGroupSpec", "template", "spec", "containers", 0, "image"]
    claim = {**CLAIM, "spec": {"storageClassName": "fast"}} if refused == "claim" else CLAIM
    monitor = {"kind": "PodMonitor", "metadata": {"name": "sp500", "namespace": "lab"}}
    more = [monitor] if refused == "kind" else []
    render(overlay, NAMESPACE, claim, changed(image, "sp500:2.61.0"), *more)
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (1, "")
    assert "the cluster refuses this overlay, and nothing of it was applied" in err
    assert ("cannot be changed. Deploy into another namespace" in err) is (refused == "claim")
    assert ('\n  PersistentVolumeClaim "sp500-data" is invalid: spec: Forbidden' in err) is (refused == "claim")
    assert "storageClassName" not in err
    assert stored(cluster) == before


def test_first_deploy_that_is_refused_leaves_the_namespace_alone(cluster, overlay):
    monitor = {"kind": "PodMonitor", "metadata": {"name": "sp500", "namespace": "lab"}}
    render(overlay, NAMESPACE, CLAIM, RAY, monitor)
    code, _, err = cluster.call("deploy", "lab")
    assert code == 1
    assert "namespace/lab created" in err
    assert not (cluster.folder / "raycluster.json").exists()


def test_second_deploy_with_data_uploads_nothing_again(cluster, overlay, content):
    folder = cluster.work / "prices"
    folder.mkdir()
    (folder / "a.csv").write_text("date,close\n")
    for outcome in ("uploaded: 1 files, checksums equal", "the same files exist already"):
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
    labels = {"ray.io/cluster": "sp500", "ray.io/node-type": "head"}
    pending = {
        "metadata": {"name": "sp500-head-x", "uid": "1", "labels": labels},
        "status": {"conditions": [scheduled]},
    }
    (cluster.folder / "pods/head.json").write_text(json.dumps(pending))
    warning = {"type": "Warning", "reason": "ProvisioningFailed", "message": "no storage class"}
    about = {"kind": "PersistentVolumeClaim", "name": "sp500-data"}
    cluster.write("events", {"items": [{**warning, "involvedObject": about}]})
    code, _, err = cluster.call("deploy", "lab", "--timeout", "0")
    assert code == 1
    assert err.splitlines()[-4:] == [
        "ResourcesError: RayCluster sp500 did not get ready within 0 s:",
        "  raycluster sp500: the operator cannot create the pods: FailedCreateHeadPod: exceeded quota",
        "  pod sp500-head-x: Unschedulable: 0/1 nodes: 3Gi",
        "  persistentvolumeclaim sp500-data: ProvisioningFailed: no storage class",
    ]


def test_cluster_without_pods_points_at_the_operator(cluster, overlay):
    cluster.write("turns", {"asleep": 9})
    assert "does the operator run?" in cluster.call("deploy", "lab", "--timeout", "0")[2]


def test_cluster_without_the_operator_is_reported_with_the_command_that_installs_it(cluster, overlay):
    (cluster.folder / "operator").unlink()
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (1, "")
    assert "helm upgrade --install kuberay-operator" in err


def test_unknown_overlay_is_refused_with_the_known_ones(cluster, overlay):
    code, _, err = cluster.call("deploy", "lba")
    assert code == 2
    assert "lba: neither a folder nor an overlay (the overlays are: lab)" in err


def test_manifests_without_a_ray_cluster_are_refused(cluster, overlay):
    (overlay / "rendered.yaml").write_text(yaml.safe_dump_all([NAMESPACE, CLAIM]))
    code, _, err = cluster.call("deploy", "lab")
    assert code == 2
    assert "expected one RayCluster with a namespace" in err
    assert not cluster.calls("apply")
