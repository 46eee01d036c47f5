"""When a RayService answers, by statuses as KubeRay 1.7 writes them."""

import pytest

from sp500.jobs.cluster.service import answers


def service(**changed):
    status = {
        "observedGeneration": 2,
        "numServeEndpoints": 1,
        "activeServiceStatus": {"applicationStatuses": {"sp500": {"status": "RUNNING"}}},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints"},
            {"type": "UpgradeInProgress", "status": "False", "reason": "NoPendingCluster"},
        ],
    }
    return {"metadata": {"name": "sp500-serve", "generation": 2}, "status": status | changed}


def test_service_with_endpoints_answers():
    assert answers(service())


@pytest.mark.parametrize(
    "changed",
    [
        {"observedGeneration": 1},
        {"numServeEndpoints": 0},
        {"numServeEndpoints": None},
        {"conditions": []},
        {"activeServiceStatus": {}},
        {"activeServiceStatus": {"applicationStatuses": {"sp500": {"status": "DEPLOY_FAILED"}}}},
        {"activeServiceStatus": {"applicationStatuses": {"sp500": {"status": "DEPLOYING"}}}},
        {"conditions": [{"type": "Ready", "status": "False", "reason": "Initializing"}]},
        {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "UpgradeInProgress", "status": "True", "reason": "BothActivePendingClustersExist"},
            ]
        },
    ],
)
def test_service_that_is_on_its_way_does_not(changed):
    assert not answers(service(**changed))


def test_service_without_a_status_does_not():
    assert not answers({"metadata": {"generation": 1}})
    assert not answers({})
