import pytest

from sp500.jobs.cluster import rollout


def cluster(head="True", generation=None, **status):
    metadata = {"generation": generation} if generation else {}
    return {"metadata": metadata, "status": {"conditions": [{"type": "HeadPodReady", "status": head}], **status}}


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        ({}, False),
        ({"status": {"readyWorkerReplicas": 2, "minWorkerReplicas": 1}}, False),
        (cluster("False", readyWorkerReplicas=2, minWorkerReplicas=1), False),
        (cluster(), True),
        (cluster(minWorkerReplicas=1), False),
        (cluster(readyWorkerReplicas=1, minWorkerReplicas=1, desiredWorkerReplicas=2), True),
        (cluster(generation=3, observedGeneration=2), False),
        (cluster(generation=3, observedGeneration=3), True),
        (cluster(generation=3), True),
    ],
)
def test_cluster_is_ready_with_its_head_and_the_fewest_workers_of_its_last_change(found, ready):
    assert rollout.ready(found) is ready
