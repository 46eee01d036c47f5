"""Every rule of the operator for a RayService and a RayCronJob, each broken by one change."""

import pytest

from sp500.jobs.manifests import rules
from sp500.jobs.operator import service_rules
from sp500.jobs.operator.violation import OPEN

CLUSTER = "spec/rayClusterConfig"
TIMEOUT = "metadata/annotations"
STEPS = {"maxSurgePercent": 50, "stepSizePercent": 10, "intervalSeconds": 30, "gatewayClassName": "istio"}
CRON = OPEN | {"RayCronJob"}


def incremental(**options):
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS | options}
    return {"spec/upgradeStrategy": strategy}


OPTIONS = "spec.upgradeStrategy.clusterUpgradeOptions"
BROKEN = [
    ({"metadata/name": "a" * 48}, "metadata.name", "47 at most"),
    ({TIMEOUT: {"ray.io/initializing-timeout": "soon"}}, "metadata.annotations[ray.io/initializing-timeout]", "'soon'"),
    ({TIMEOUT: {"ray.io/initializing-timeout": "0s"}}, "metadata.annotations[ray.io/initializing-timeout]", "10m"),
    ({TIMEOUT: {"ray.io/initializing-timeout": "-5m"}}, "metadata.annotations[ray.io/initializing-timeout]", "'-5m'"),
    (
        {f"{CLUSTER}/authOptions/enableK8sTokenAuth": True},
        "spec.rayClusterConfig.authOptions.enableK8sTokenAuth",
        "in a RayService",
    ),
    (
        {f"{CLUSTER}/workerGroupSpecs/0/minReplicas": -1},
        "spec.rayClusterConfig.workerGroupSpecs[0].minReplicas",
        "is -1",
    ),
    (
        {f"{CLUSTER}/upgradeStrategy": {"type": "Recreate"}},
        "spec.rayClusterConfig.upgradeStrategy",
        "cluster of a RayService",
    ),
    (
        {f"{CLUSTER}/headGroupSpec/headService": {"metadata": {"name": "mine"}}},
        "spec.rayClusterConfig.headGroupSpec.headService.metadata.name",
        "leave it out",
    ),
    ({"spec/upgradeStrategy": {"type": "Recreate"}}, "spec.upgradeStrategy.type", "NewCluster"),
    ({"spec/rayClusterDeletionDelaySeconds": -1}, "spec.rayClusterDeletionDelaySeconds", "is -1"),
    (
        incremental() | {f"{CLUSTER}/enableInTreeAutoscaling": False},
        "spec.rayClusterConfig.enableInTreeAutoscaling",
        "incremental upgrade",
    ),
    ({"spec/upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade"}}, OPTIONS, "is unset"),
    (incremental(maxSurgePercent=101), f"{OPTIONS}.maxSurgePercent", "is 101"),
    (incremental(stepSizePercent=-1), f"{OPTIONS}.stepSizePercent", "0 to 100"),
    (incremental(stepSizePercent=60), f"{OPTIONS}.stepSizePercent", "60 is above maxSurgePercent 50"),
    (incremental(intervalSeconds=0), f"{OPTIONS}.intervalSeconds", "is 0"),
    (incremental(gatewayClassName=""), f"{OPTIONS}.gatewayClassName", "GatewayClass"),
]
BROKEN_CRON = [
    ({"metadata/name": "a" * 37}, "metadata.name", "36 at most"),
    ({"spec/schedule": "CRON_TZ=Europe/Zurich 0 3 * * *"}, "spec.schedule", "spec.timeZone"),
    ({"spec/schedule": "0 3 * *"}, "spec.schedule", "4 fields"),
    ({"spec/schedule": "60 3 * * *"}, "spec.schedule", "minute 60"),
    ({"spec/schedule": "0 3 0 * *"}, "spec.schedule", "day of month 0"),
    ({"spec/schedule": "0 3 * * 5-1"}, "spec.schedule", "day of week 5-1"),
    ({"spec/schedule": "0 3 * may-foo *"}, "spec.schedule", "month may-foo"),
    ({"spec/schedule": "*/0 3 * * *"}, "spec.schedule", "minute */0"),
    ({"spec/schedule": "@fortnightly"}, "spec.schedule", "1 fields"),
    ({"spec/timeZone": ""}, "spec.timeZone", "'' is not a time zone"),
    ({"spec/timeZone": "Europe/Bern"}, "spec.timeZone", "'Europe/Bern'"),
    ({"spec/jobTemplate/backoffLimit": -1}, "spec.jobTemplate.backoffLimit", "is -1"),
    (
        {"spec/jobTemplate/rayClusterSpec/workerGroupSpecs/0/minReplicas": 9},
        "spec.jobTemplate.rayClusterSpec.workerGroupSpecs[0].minReplicas",
        "9 is above",
    ),
]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        incremental(),
        {TIMEOUT: {"ray.io/initializing-timeout": "1h30m"}},
        {TIMEOUT: {"ray.io/initializing-timeout": "600"}},
    ],
)
def test_good_service_breaks_no_rule(rayservice, changed, changes):
    assert rules.violations(changed(rayservice, changes)) == []


@pytest.mark.parametrize(("changes", "path", "words"), BROKEN)
def test_one_change_breaks_one_rule_of_a_service(rayservice, changed, changes, path, words):
    (found,) = rules.violations(changed(rayservice, changes))
    assert (found.path, words in str(found)) == (path, True)


@pytest.mark.parametrize("rule", service_rules.SERVICE_RULES)
def test_every_rule_of_a_service_is_broken_by_some_change(rayservice, changed, rule):
    assert any(list(rule(changed(rayservice, row[0]))) for row in BROKEN)


@pytest.mark.parametrize("schedule", ["*/15 0-6,22 1 jan-mar MON", "@daily", "@every 1h30m", "5 4 * * ?", "0 0 1 1 0"])
def test_good_schedule_breaks_no_rule(raycronjob, changed, schedule):
    assert rules.violations(changed(raycronjob, {"spec/schedule": schedule}), CRON) == []


@pytest.mark.parametrize(("changes", "path", "words"), BROKEN_CRON)
def test_one_change_breaks_one_rule_of_a_cron_job(raycronjob, changed, changes, path, words):
    (found,) = rules.violations(changed(raycronjob, changes), CRON)
    assert (found.path, words in str(found)) == (path, True)


def test_cron_job_needs_its_gate(raycronjob):
    (found,) = rules.violations(raycronjob)
    assert "feature gate RayCronJob" in str(found)
