"""When a RayService answers, by statuses as KubeRay 1.7 writes them."""

import pytest

from sp500.jobs.cluster.service import answers, complaints, has_failed


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


DEPLOYMENTS = {
    "model": {
        "status": "DEPLOY_FAILED",
        "message": "Failed three times.\n\nsp500.errors.ConfigError: m7: no run in /runs, and no model",
    },
    "gate": {"status": "HEALTHY", "message": "fine"},
}
FAILED = {
    "sp500": {
        "status": "DEPLOY_FAILED",
        "message": "Failed to update ['model'].",
        "serveDeploymentStatuses": DEPLOYMENTS,
    }
}


def test_reason_of_a_deployment_is_told_with_that_of_its_application():
    found = list(complaints(service(activeServiceStatus={"applicationStatuses": FAILED})))
    assert found == [
        "application sp500: DEPLOY_FAILED: Failed to update ['model'].",
        "deployment model: DEPLOY_FAILED: sp500.errors.ConfigError: m7: no run in /runs, and no model",
    ]


def test_service_has_failed_where_its_newest_cluster_has():
    assert has_failed(service(activeServiceStatus={"applicationStatuses": FAILED}))
    # KubeRay keeps a pending status without applications where no cluster is on its way.
    assert has_failed(service(activeServiceStatus={"applicationStatuses": FAILED}, pendingServiceStatus={"x": {}}))
    upgrading = [{"type": "Ready", "status": "True"}, {"type": "UpgradeInProgress", "status": "True"}]
    assert has_failed(service(pendingServiceStatus={"applicationStatuses": FAILED}, conditions=upgrading))
    assert not has_failed(service(activeServiceStatus={"applicationStatuses": FAILED}, conditions=upgrading))
    assert not has_failed(service(activeServiceStatus={"applicationStatuses": FAILED}, observedGeneration=1))
    assert not has_failed(service())
