"""The queue's verbs on Kubernetes: a user's processes, a manager, an API server, and an operator that a test leads."""

import json
import os
import time
from pathlib import Path

import forks
import pytest
from kube_operator import Operator
from kube_server import KubeServer
from kube_store import KubeStore
from queue_fakes import managed, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server():
    """An API server for all jobs of these tests, so that one manager leads them all."""
    with KubeServer(KubeStore()) as server:
        yield server


@pytest.fixture
def kube(server):
    """The server; what a test leaves there somebody deletes."""
    yield server
    for plural, name in list(server.store.objects):
        if plural == "rayjobs":
            server.store.delete(plural, name)
    server.store.collect()


@pytest.fixture(scope="module")
def state(tmp_path_factory, server):
    """A folder with a state folder; when the tests are done, whoever still manages it is ended."""
    with managed(tmp_path_factory.mktemp("kuberay") / "sp500") as folder:
        yield folder.parent


@pytest.fixture
def sp500(kubeconfig, state):
    """Runs `sp500 jobs` to its end."""

    def run(*words, code=0, **others):
        environment = {**os.environ, "KUBECONFIG": kubeconfig, "XDG_STATE_HOME": str(state), **others}
        done = forks.run(["sp500", "jobs", *map(str, words)], cwd=ROOT, env=environment)
        assert done.returncode == code, done
        return done.stdout

    return run


@pytest.fixture
def listed(sp500):
    """What `list` tells of a job."""
    return lambda id: next(job for job in json.loads(sp500("list", "--json")) if job["id"] == id)


@pytest.fixture
def noticed(state, listed):
    """Waits until the manager has seen a reason, of which the list and the history tell then."""
    from sp500.jobs import client

    ledger = client.open_queue(state / "sp500").ledger

    def wait(id, word):
        until(lambda: word in ledger.jobs([id])[0].reason, 10)  # as long as a user may have to wait for a reason
        assert word in listed(id)["reason"]

    return wait


@pytest.fixture
def submitted(sp500, kube):
    """Makes a job that the API server has: its id, and the operator of it."""

    def submit(*flags):
        words = ("--on", "kuberay", "--namespace", "sp500", "--json", *flags, "--", "python", "experiments/tune.py")
        id = json.loads(sp500("submit", *words))["id"]
        until(lambda: ("rayjobs", id) in kube.store.objects, 10)
        return id, Operator(kube.store, id)

    return submit


def unschedulable(operator):
    operator.initialize()
    operator.ready(operator.head)
    operator.unschedulable(operator.workers[0], "0/3 nodes are available: 3 Insufficient cpu.")


@pytest.fixture
def pends(sp500, noticed):
    """Expects a job to be pending, for a reason with these words."""

    def check(id, *words):
        seen = json.loads(sp500("status", id, "--json"))
        assert seen["state"] == "PENDING"
        assert all(word in seen["reason"] for word in words), seen["reason"]
        noticed(id, words[0])

    return check


def test_job_whose_image_never_comes_fails_with_the_reason_and_not_only_the_deadline(sp500, submitted, pends):
    id, operator = submitted()
    operator.initialize()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "sp500:nightly"'}}
    operator.container(operator.head, waiting)
    pends(id, "ImagePullBackOff", "sp500:nightly")
    operator.end("PreRunningDeadlineExceeded", "The RayJob has passed the preRunningDeadlineSeconds")
    said = sp500("wait", id, code=1)
    assert "PreRunningDeadlineExceeded" in said
    assert "ImagePullBackOff" in said


def test_job_runs_to_its_end_with_replicas_and_logs_by_role(sp500, submitted):
    id, operator = submitted("--workers", 2)
    operator.to_running()
    told = json.loads(sp500("status", id, "--json"))
    assert (told["state"], told["replicas"]) == (
        "RUNNING",
        {role: {"ready": count, "wanted": count} for role, count in (("head", 1), ("worker", 2), ("submitter", 1))},
    )
    operator.say(operator.submitter, "epoch 1/3")
    worker = operator.workers[1]
    operator.say(worker, "loss went down")
    assert sp500("logs", id, "--role", "submitter") == f"[submitter {operator.submitter}] epoch 1/3\n"
    operator.succeed()
    assert "SUCCEEDED" in sp500("wait", id)
    operator.store.delete("rayjobs", id)
    operator.store.collect()
    assert f"[worker {worker}] loss went down" in sp500("logs", id).splitlines()


def test_status_shows_what_the_command_printed_and_before_that_what_its_pods_did(sp500, submitted):
    id, operator = submitted()
    operator.to_running()
    for pod in (operator.head, *operator.workers):
        operator.say(pod, "To terminate the Ray runtime, run", "  ray stop")
    assert "To terminate the Ray runtime" in sp500("status", id)
    operator.say(operator.submitter, "epoch 1/3")
    told = json.loads(sp500("status", id, "--json"))["log"]
    assert [line.endswith("epoch 1/3") for line in told] == [True]


def test_submitter_that_waits_for_a_deleted_cluster_goes_with_the_end_of_its_job(sp500, submitted, kube):
    id, operator = submitted()
    for step in (operator.initialize, operator.start_pods, operator.submit, operator.start_submitter):
        step()
    operator.container(operator.submitter, {"waiting": {"reason": "CreateContainerConfigError"}})
    operator.end("DeadlineExceeded", "The RayJob has passed the activeDeadlineSeconds")
    operator.tidy()
    sp500("wait", id, code=4)
    until(lambda: "deletionTimestamp" in kube.store.get("jobs", id)["metadata"], 10)
    assert kube.store.get("rayjobs", id)["status"]["reason"] == "DeadlineExceeded"


def test_stopped_job_is_gone_from_the_cluster_and_its_log_is_kept(sp500, submitted, kube):
    id, operator = submitted()
    operator.to_running()
    operator.say(operator.submitter, "epoch 1/3")
    sp500("stop", id, "--timeout", 2, code=4)
    until(lambda: "deletionTimestamp" in kube.store.objects["rayjobs", id]["metadata"], 60.0)
    kube.store.collect()  # pods first, then the RayJob, as the garbage collector does it
    assert sp500("wait", id, code=143) == f"{id} is STOPPED: stopped on request\n"
    assert ("rayjobs", id) not in kube.store.objects
    assert sp500("logs", id).endswith("epoch 1/3\n")


@pytest.mark.parametrize("what", ["namespace", "right", "claim"])
def test_job_that_the_cluster_would_refuse_is_not_queued(sp500, tmp_path, what):
    with KubeServer(KubeStore()) as other:
        if what == "namespace":
            other.store.missing.add("sp500")
        elif what == "right":
            other.store.denied.add(("create", "rayjobs"))
        else:
            other.store.claims.clear()
        folders = {"KUBECONFIG": other.write_kubeconfig(tmp_path / "other"), "XDG_STATE_HOME": str(tmp_path)}
        sp500("submit", "--on", "kuberay", "--", "python", "experiments/tune.py", code=1, **folders)
        assert json.loads(sp500("list", "--json", **folders)) == []


def test_submit_names_the_namespace_that_the_job_goes_to(sp500):
    said = sp500("submit", "--on", "kuberay", "--workers", 2, "--", "python", "experiments/train.py")
    assert "to run on kuberay, namespace sp500, context here" in said.splitlines()[0]
    assert "2 workers by default (SP500_WORLD_SIZE)" in said
    assert "SP500_WORLD_SIZE" not in sp500("submit", "--on", "kuberay", "--workers", 2, "--", "sp500", "tune")


def test_job_whose_workers_never_had_a_node_says_so_and_costs_nothing(sp500, submitted, pends):
    id, operator = submitted()
    unschedulable(operator)
    pends(id, "Unschedulable", "3 Insufficient cpu")
    time.sleep(2)  # of a price per hour this is more than nothing
    operator.end("PreRunningDeadlineExceeded", "The RayJob has passed the preRunningDeadlineSeconds")
    operator.tidy()
    sp500("wait", id, code=1)
    assert json.loads(sp500("status", id, "--json"))["cost"] == 0


def test_job_costs_from_the_moment_that_a_worker_has_its_node(sp500, submitted, noticed):
    id, operator = submitted()
    unschedulable(operator)
    noticed(id, "Unschedulable")
    operator.container(operator.workers[0], {"waiting": {"reason": "ImagePullBackOff", "message": "gone"}})
    noticed(id, "ImagePullBackOff")
    time.sleep(2)
    operator.end("PreRunningDeadlineExceeded", "The RayJob has passed the preRunningDeadlineSeconds")
    sp500("wait", id, code=1)
    assert json.loads(sp500("status", id, "--json"))["cost"] > 0
