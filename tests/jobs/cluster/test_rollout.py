from sp500.jobs.cluster import rollout
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
