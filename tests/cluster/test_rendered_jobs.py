"""RayJobs rendered from the trees: the operator's CRD and rules, and the security of their pods."""

import functools
import pickle

import core_schema
import crd_schema
import pod_rules
import pytest
import yaml
from manifests import CLUSTER, TREES, Document, alone, crds, of_kind, pods, rendered, tree_id

from sp500.jobs.manifests import rules
from sp500.jobs.manifests.rayjob import build_documents
from sp500.jobs.spec import JobSpec

SPECS = CLUSTER.parent / "tests" / "jobs" / "specs"
JOBS = {
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted(SPECS.glob("*.yaml"))},
    "interactive": {"argv": ("python", "experiments/tune.py"), "mode": "InteractiveMode"},
    "queued": {"argv": ("python", "experiments/tune.py"), "queue": "sp500", "settings": {"trials": 9}},
    "gpus": {"argv": ("python", "experiments/train.py"), "gpus": 1, "workers": 4},
    "512 gpus": {"argv": ("python", "experiments/train.py"), "gpus": 8, "workers": 64},
}
EACH_TREE = pytest.mark.parametrize("tree", [None, *TREES], ids=lambda tree: tree_id(tree) if tree else "alone")
EACH_JOB = pytest.mark.parametrize("job", JOBS)


def raycluster(tree) -> Document:
    [found] = of_kind(rendered(tree) if tree else alone(), "RayCluster")
    return found


@functools.cache
def built(tree, job) -> bytes:
    return pickle.dumps(build_documents(JobSpec(**JOBS[job]), raycluster(tree), b"zip" if job == "program" else b""))


def rendered_job(tree, job) -> tuple[Document, list[Document]]:
    documents = pickle.loads(built(tree, job))
    [rayjob] = of_kind(documents, "RayJob")
    return rayjob, [one for one in documents if one is not rayjob]


def job_pods(rayjob) -> list[Document]:
    """Pods of the job's cluster, and the submitter's."""
    inner = {"metadata": {"name": "job"}, "spec": rayjob["spec"]["rayClusterSpec"]}
    found = [pod for pod, _ in pods(inner)]
    if template := rayjob["spec"].get("submitterPodTemplate"):
        found.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "submitter"}})
    return found


@EACH_TREE
def test_raycluster_of_a_tree_keeps_the_operators_rules(tree):
    assert rules.violations(raycluster(tree)) == []


@EACH_TREE
@EACH_JOB
def test_job_keeps_the_operators_rules(tree, job):
    assert rules.violations(rendered_job(tree, job)[0]) == []


@EACH_TREE
@EACH_JOB
def test_job_fits_its_crd_and_what_comes_with_it_the_core_schemas(tree, job):
    rayjob, others = rendered_job(tree, job)
    assert crd_schema.faults(rayjob, crd_schema.of_crd(crds() / "ray.io_rayjobs.yaml")) == []
    for one in others:
        core_schema.validate(one, "1.36")


@EACH_TREE
@EACH_JOB
@pytest.mark.parametrize("rule", [pod_rules.unrestricted, pod_rules.floating, pod_rules.unequal_memory])
def test_pods_of_a_job_keep_the_rule(tree, job, rule):
    found = job_pods(rendered_job(tree, job)[0])
    assert len(found) == (2 if job == "interactive" else 3)
    assert [fault for pod in found for fault in rule(pod)] == []


@EACH_TREE
def test_no_container_of_a_job_holds_a_token(tree):
    assert [pod_rules.token_holders(pod) for pod in job_pods(rendered_job(tree, "tune")[0])] == [[], [], []]
