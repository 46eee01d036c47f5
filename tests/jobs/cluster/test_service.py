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


def test_service_with_endpoints_answers_and_one_without_a_status_does_not():
    assert answers(service())
    assert not answers({"metadata": {"generation": 1}})
    assert not answers({})


READY = {"type": "Ready", "status": "True"}
UPGRADING = {"type": "UpgradeInProgress", "status": "True"}


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
        {"conditions": [READY | {"status": "False"}]},
        {"conditions": [READY, UPGRADING]},
    ],
)
def test_service_that_is_on_its_way_does_not(changed):
    assert not answers(service(**changed))


MODEL = {"status": "DEPLOY_FAILED", "message": "Failed three times.\n\nsp500.errors.ConfigError: m7: no run in /runs"}
DEPLOYMENTS = {"model": MODEL, "gate": {"status": "HEALTHY", "message": "fine"}}
APPLICATION = {"status": "DEPLOY_FAILED", "message": "Failed to update ['model']."}
FAILED = {"applicationStatuses": {"sp500": {**APPLICATION, "serveDeploymentStatuses": DEPLOYMENTS}}}


def test_reason_of_a_deployment_is_told_with_that_of_its_application():
    assert list(complaints(service(activeServiceStatus=FAILED))) == [
        f"application sp500: DEPLOY_FAILED: {APPLICATION['message']}",
        "deployment model: DEPLOY_FAILED: sp500.errors.ConfigError: m7: no run in /runs",
    ]


def test_service_has_failed_where_its_newest_cluster_has():
    assert has_failed(service(activeServiceStatus=FAILED))
    # KubeRay keeps a pending status without applications where no cluster is on its way.
    assert has_failed(service(activeServiceStatus=FAILED, pendingServiceStatus={"x": {}}))
    upgrading = [READY, UPGRADING]
    assert has_failed(service(pendingServiceStatus=FAILED, conditions=upgrading))
    assert not has_failed(service(activeServiceStatus=FAILED, conditions=upgrading))
    assert not has_failed(service(activeServiceStatus=FAILED, observedGeneration=1))
    assert not has_failed(service())
