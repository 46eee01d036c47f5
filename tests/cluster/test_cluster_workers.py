"""SP500_CLUSTER_WORKERS, by which scripts know how far their cluster grows, agrees with the cluster's own spec."""

import math

import pytest
import yaml
from manifests import CLUSTER, PAIRS, TREES, Document, alone, of_kind, rendered, tree_id

from sp500.distributed.capacity import WorkerGroup
from sp500.jobs.manifests.rayjob import build_documents
from sp500.jobs.spec import JobSpec

VARIABLE = "SP500_CLUSTER_WORKERS"
SPECS = sorted((CLUSTER.parent / "tests" / "jobs" / "specs").glob("*.yaml"))


def announced(spec: Document) -> list[WorkerGroup]:
    """The variable's values in Ray's containers of head and workers."""
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    environments = [group["template"]["spec"]["containers"][0]["env"] for group in groups]
    values = [[entry["value"] for entry in environment if entry["name"] == VARIABLE] for environment in environments]
    assert [len(found) for found in values] == [1] * len(groups)
    return [WorkerGroup.model_validate_json(found[0]) for found in values]


def specified(spec: Document) -> WorkerGroup:
    """The same from the worker group, counted as the operator does: limits, CPUs rounded up."""
    [group] = spec["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    cpus = str(limits["cpu"])
    return WorkerGroup(
        replicas=group["replicas"],
        maxReplicas=group["maxReplicas"],
        CPU=math.ceil(int(cpus[:-1]) / 1000) if cpus.endswith("m") else int(cpus),
        GPU=int(limits.get("nvidia.com/gpu", 0)),
    )


@pytest.mark.parametrize("tree", [None, *TREES, *PAIRS], ids=lambda tree: tree_id(tree) if tree else "alone")
def test_pods_of_a_tree_know_the_size_of_its_worker_group(tree):
    [cluster] = of_kind(rendered(tree) if tree else alone(), "RayCluster")
    assert announced(cluster["spec"]) == [specified(cluster["spec"])] * 2


@pytest.mark.parametrize(
    "job",
    [
        *[yaml.safe_load(path.read_text()) for path in SPECS],
        {"argv": ("python", "experiments/tune.py"), "workers": 3, "cpus": 2},
        {"argv": ("python", "experiments/train.py"), "gpus": 2, "workers": 4},
    ],
    ids=lambda job: f"{job.get('workers')} x {job.get('gpus', 0)} GPUs",
)
def test_pods_of_a_job_know_that_it_has_its_own_workers_and_no_more(job):
    [cluster] = of_kind(alone(), "RayCluster")
    spec = JobSpec(**job)
    [rayjob] = of_kind(build_documents(spec, cluster), "RayJob")
    inner = rayjob["spec"]["rayClusterSpec"]
    assert announced(inner) == [specified(inner)] * 2
    assert specified(inner).max_replicas == spec.workers
