import pytest

from sp500.jobs import rollout


def cluster(head="True", **workers):
    return {"status": {"conditions": [{"type": "HeadPodReady", "status": head}], **workers}}


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        ({}, False),
        ({"status": {"readyWorkerReplicas": 2, "minWorkerReplicas": 1}}, False),
        (cluster("False", readyWorkerReplicas=2, minWorkerReplicas=1), False),
        (cluster(), True),
        (cluster(minWorkerReplicas=1), False),
        (cluster(readyWorkerReplicas=1, minWorkerReplicas=1, desiredWorkerReplicas=2), True),
    ],
)
def test_cluster_is_ready_with_its_head_and_the_fewest_workers(found, ready):
    assert rollout.ready(found) is ready
