import subprocess
from pathlib import Path

import pytest
import yaml

from sp500.jobs.cluster import transfer_pod
from sp500.jobs.cluster.transfer_pod import Image
from sp500.jobs.manifests.manifest import quantity

MANIFEST = Path(__file__).parents[3] / "cluster" / "raycluster.yaml"
# Requests of CPU that a node of kind has before us: kube-system (API server 250m, controllers 200m, network, DNS, etcd
# and scheduler 100m each, DNS twice) and the operator's chart (100m).
KIND = 0.95 + 0.1


def pod(read_only=False, **image):
    return transfer_pod.manifest("name", "sp500-data", "/data", Image("sp500:2.60.0", **image), read_only=read_only)


def test_pod_is_what_pod_security_restricted_asks_for():
    spec = pod()["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {kind for volume in spec["volumes"] for kind in volume} == {"name", "persistentVolumeClaim"}


def test_pod_passes_a_quota_and_ends_without_its_client():
    spec = pod()["spec"]
    resources = spec["containers"][0]["resources"]
    assert resources["requests"].keys() == resources["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["restartPolicy"] == "Never"


def test_pod_without_a_connection_ends_by_itself_and_one_with_a_connection_stays(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "self").mkdir()
    connection = tmp_path / "17"
    connection.mkdir()
    process = subprocess.Popen(transfer_pod.watch_argv(0.02, 3, str(tmp_path)))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        connection.rmdir()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_pod_fits_beside_head_and_worker_on_a_laptop_of_two_cpus():
    ray = next(one["spec"] for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "RayCluster")
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    asked = [ray["autoscalerOptions"], *containers, *pod()["spec"]["containers"]]
    assert KIND + sum(quantity(one["resources"]["requests"]["cpu"]) for one in asked) <= 2


@pytest.mark.parametrize("read_only", [True, False])
def test_claim_is_mounted_for_writing_only_when_asked(read_only):
    spec = pod(read_only=read_only)["spec"]
    assert spec["containers"][0]["volumeMounts"][0]["readOnly"] is read_only
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "sp500-data"


def test_image_is_the_heads_and_pulled_as_it_is():
    head = {"image": "r/sp500:2.60.0-gpu", "imagePullPolicy": "Never"}
    template = {"spec": {"containers": [head, {"image": "other"}], "imagePullSecrets": [{"name": "registry"}]}}
    image = transfer_pod.image_of({"headGroupSpec": {"template": template}})
    spec = pod(pull_policy=image.pull_policy, pull_secrets=image.pull_secrets)["spec"]
    assert image.name == "r/sp500:2.60.0-gpu"
    assert spec["containers"][0]["imagePullPolicy"] == "Never"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
