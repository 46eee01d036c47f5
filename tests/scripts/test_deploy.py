import json

import pytest
import yaml

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "sp500-data", "namespace": "lab"}}
RAY = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "sp500", "namespace": "lab"}}
UP = {"conditions": [{"type": "HeadPodReady", "status": "True"}], "readyWorkerReplicas": 1, "minWorkerReplicas": 1}


@pytest.fixture
def overlay(cluster):
    """An overlay named `lab`, whose Ray cluster comes up at once."""
    folder = cluster.work / "cluster/overlays/lab"
    folder.mkdir(parents=True)
    (folder / "rendered.yaml").write_text(yaml.safe_dump_all([NAMESPACE, CLAIM, RAY]))
    status(cluster, UP)
    return folder


def status(cluster, found):
    path = cluster.folder / "raycluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": found}))


def test_overlay_is_applied_and_awaited(cluster, overlay):
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (0, "RayCluster sp500 in namespace lab is ready\n")
    assert err.splitlines() == [
        "namespace/lab configured",
        "persistentvolumeclaim/sp500-data configured",
        "raycluster/sp500 configured",
    ]


def test_folder_of_ones_own_is_an_overlay(cluster, overlay):
    assert cluster.call("deploy", overlay)[0] == 0


def test_deployed_twice_with_data_nothing_is_sent_again(cluster, overlay, content):
    folder = cluster.work / "prices"
    folder.mkdir()
    (folder / "a.csv").write_text("date,close\n")
    for told in ("uploaded: 1 files, checksums equal", "is there already, file by file"):
        code, _, err = cluster.call("deploy", "lab", "--data", "prices")
        assert code == 0
        assert f"/data/prices {told}" in err
    assert content(cluster.data) == {"prices/a.csv": b"date,close\n"}
    assert cluster.pods == []


def test_cluster_that_does_not_get_ready_is_told_with_pods_claims_and_warnings(cluster, overlay):
    status(cluster, {})
    pending = {
        "metadata": {"name": "sp500-head-x", "labels": {"ray.io/cluster": "sp500"}},
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: 3Gi"}
            ]
        },
    }
    (cluster.folder / "pods/head.json").write_text(json.dumps(pending))
    warning = {"type": "Warning", "reason": "ProvisioningFailed", "message": "no storage class"}
    about = {"kind": "PersistentVolumeClaim", "name": "sp500-data"}
    cluster.write("events", {"items": [{**warning, "involvedObject": about}]})
    code, _, err = cluster.call("deploy", "lab", "--timeout", "0")
    assert code == 1
    assert err.splitlines()[3:] == [
        "ResourcesError: RayCluster sp500 did not get ready within 0 s:",
        "  pod sp500-head-x: Unschedulable: 0/1 nodes: 3Gi",
        "  persistentvolumeclaim sp500-data: ProvisioningFailed: no storage class",
    ]


def test_cluster_without_pods_points_at_the_operator(cluster, overlay):
    status(cluster, {})
    assert "does the operator run?" in cluster.call("deploy", "lab", "--timeout", "0")[2]


def test_cluster_without_the_operator_is_told_how_it_is_installed(cluster, overlay):
    (cluster.folder / "operator").unlink()
    code, out, err = cluster.call("deploy", "lab")
    assert (code, out) == (1, "")
    assert "helm upgrade --install kuberay-operator" in err


def test_overlay_that_is_none_is_refused_with_those_there_are(cluster, overlay):
    code, _, err = cluster.call("deploy", "lba")
    assert code == 2
    assert "lba: neither a folder nor an overlay (those are: lab)" in err


def test_manifests_without_a_ray_cluster_are_refused(cluster, overlay):
    (overlay / "rendered.yaml").write_text(yaml.safe_dump_all([NAMESPACE, CLAIM]))
    code, _, err = cluster.call("deploy", "lab")
    assert code == 2
    assert "expected one RayCluster with a namespace" in err
    assert not cluster.calls("apply")
