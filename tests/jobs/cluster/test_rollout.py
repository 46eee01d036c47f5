from dataclasses import dataclass

import pytest

from sp500.errors import ResourcesError
from sp500.jobs.cluster import rollout
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.rollout import Overlay, Rollout

SPEC = {"workerGroupSpecs": [{"minReplicas": 1}, {"minReplicas": 2, "numOfHosts": 2}, {}]}
FEWEST = 5


def pod(kind, uid="1", ready=True, digest="a", **metadata):
    labels = {"ray.io/node-type": kind}
    conditions = [{"type": "Ready", "status": str(ready)}]
    annotations = {rollout.HASH: digest}
    metadata = {"name": f"{kind}-{uid}", "uid": uid, "labels": labels, "annotations": annotations, **metadata}
    return {"metadata": metadata, "status": {"conditions": conditions}}


def ready(*pods, replaced=None):
    return rollout.ready(Rollout(Overlay("", (), "sp500", "lab"), SPEC, replaced), pods)


def workers(count, **how):
    return [pod("worker", str(number), **how) for number in range(count)]


def test_cluster_is_ready_with_its_head_and_the_fewest_workers_of_all_groups():
    assert not ready()
    assert not ready(*workers(FEWEST))
    assert not ready(pod("head", ready=False), *workers(FEWEST))
    assert not ready(pod("head"), *workers(FEWEST - 1), pod("worker", "9", ready=False))
    assert ready(pod("head"), *workers(FEWEST))


def test_head_and_workers_that_are_being_deleted_do_not_count():
    assert not ready(pod("head", deletionTimestamp="now"), *workers(FEWEST))
    assert not ready(pod("head"), *workers(FEWEST, deletionTimestamp="now"))
    assert ready(pod("head", "1", deletionTimestamp="now"), pod("head", "2"), *workers(FEWEST), replaced=("1", "a"))


def test_head_to_be_replaced_is_not_ready_until_it_is_another_or_the_operator_took_over_its_hash():
    assert not ready(pod("head", "1"), *workers(FEWEST), replaced=("1", "a"))
    assert ready(pod("head", "2"), *workers(FEWEST), replaced=("1", "a"))
    assert ready(pod("head", "1", digest="b"), *workers(FEWEST), replaced=("1", "a"))


@dataclass(frozen=True)
class Suspended(Kubectl):
    """kubectl for a RayCluster that Kueue holds, and an old event of a deleted one of its name."""

    workloads: object = None

    def document(self, *words):
        labels, status = {"kueue.x-k8s.io/queue-name": "sp500"}, [{"type": "RayClusterSuspended", "status": "True"}]
        metadata = {"name": "sp500", "uid": "new", "labels": labels}
        return {"metadata": metadata, "spec": {"suspend": True}, "status": {"conditions": status}}

    def items(self, *words):
        if words[1] == "workloads.kueue.x-k8s.io":
            assert "--selector=kueue.x-k8s.io/job-uid=new" in words
            if self.workloads is None:
                raise ResourcesError("kubectl get: forbidden")
            return self.workloads
        about = {"kind": "RayCluster", "name": "sp500", "uid": "old"}
        webhook = {"type": "Warning", "reason": "FailedToCreateWorkerPod", "message": "webhook"}
        return [webhook | {"involvedObject": about}] if words[1] == "events" else []


@pytest.mark.parametrize(
    ("workloads", "words"),
    [
        (["resource ephemeral-storage unavailable in ClusterQueue"], ": resource ephemeral-storage"),
        ([], "; no Workload"),
        (None, "; no Workload"),
    ],
)
def test_deploy_says_why_kueue_holds_the_cluster_and_nothing_of_its_predecessor(workloads, words):
    if workloads:
        condition = {"type": "QuotaReserved", "status": "False", "message": workloads[0]}
        workloads = [{"status": {"conditions": [condition]}}]
    applied = Rollout(Overlay("", (), "sp500", "lab"), SPEC, None)
    with pytest.raises(ResourcesError) as error:
        rollout.wait(Suspended("lab", workloads=workloads), applied, seconds=0, say=print)
    assert f"in queue sp500{words}" in str(error.value)
    assert "webhook" not in str(error.value)
