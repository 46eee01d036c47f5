"""What a cluster lacks is said before anything starts."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from worker_requests import FOUR, STORE, refusal

from sp500.distributed import capacity, preflight, session
from sp500.errors import ResourcesError
from sp500.machine.memory import run_in_subprocess

# A node in a mount namespace of its own, which sees another folder under the same path.
ELSEWHERE = 'mount -t tmpfs none "$1" && shift && exec "$@"'
# Three nodes one after the other, a minute each on a machine with other work.
SLOW = pytest.mark.timeout(900)


def ask_a_cluster(folder: Path) -> dict[str, object]:
    """What preflight says of a head without CPUs, as after its replacement, whose two workers come one by one.

    The second sees another folder, where this user can make that.
    """
    os.environ.pop(capacity.WORKERS_VARIABLE, None)  # of a cluster of other tests in the parent
    os.environ |= session.LOCAL_ENVIRONMENT
    common = {"object_store_memory": STORE, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0, **common})
    answers: dict[str, object] = {}
    try:
        capacity.UNANNOUNCED_SECONDS = 1
        answers["unannounced"] = refusal(2)
        os.environ[capacity.WORKERS_VARIABLE] = json.dumps(FOUR)
        answers["too many"] = refusal(3)
        with ThreadPoolExecutor(1) as pool, redirect_stderr(io.StringIO()) as said:
            late = pool.submit(refusal, 2)
            until(said.getvalue)
            cluster.add_node(num_cpus=1, memory=2**30, **common)
            answers["resources"] = capacity.resources()
            preflight.check_shared_storage(folder)
            answers["left"] = [path.name for path in folder.iterdir()]
            with a_node_elsewhere(cluster, folder, common):
                answers["late"] = late.result()
                answers["stderr"] = said.getvalue()
                if can_mount(folder):
                    with pytest.raises(ResourcesError) as refused:
                        preflight.check_shared_storage(folder)
                    answers["elsewhere"] = str(refused.value)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return answers


def start_node(argv: list[str]) -> subprocess.Popen[bytes]:
    """A process that is a node of the cluster. On a very busy machine Ray ends one that takes 30 s to start."""
    before = len(ray.nodes())
    for _ in range(session.STARTS):
        node = subprocess.Popen(argv, env=os.environ)
        until(lambda node=node: node.poll() is not None or len(ray.nodes()) > before)
        if node.poll() is None:
            return node
    raise AssertionError(f"no node within {session.STARTS} starts; the last ended with {node.returncode}")


@contextmanager
def a_node_elsewhere(cluster: Cluster, folder: Path, common: dict[str, object]) -> Iterator[None]:
    """A node that sees another folder under the same path; where this user may not mount, one that sees the same."""
    if not can_mount(folder):
        cluster.add_node(num_cpus=1, **common)
        yield
        return
    ray_start = [str(Path(sys.executable).with_name("ray")), "start", f"--address={cluster.address}", "--num-cpus=1"]
    ray_start += ["--block", "--include-log-monitor=false", f"--object-store-memory={STORE}"]
    argv = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), *ray_start]
    node = start_node(argv)
    try:
        yield
    finally:
        node.terminate()
        node.wait(timeout=120)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("shared")
    return {"folder": folder, **run_in_subprocess(ask_a_cluster, folder)}


def until(ready):
    deadline = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def can_mount(folder: Path) -> bool:
    argv = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


@SLOW
def test_workers_that_are_on_their_way_are_awaited_and_more_than_can_come_are_refused_at_once(answers):
    assert "2 CPUs and 0 GPUs were requested; after 1 s the cluster has 0 CPUs" in answers["unannounced"]
    assert "--num-workers 3 needs a CPU for each; the cluster has 0 CPUs and 0 GPUs on 1 node" in (answers["too many"])
    assert "can grow to 2 CPUs" in answers["too many"]
    assert answers["late"] == "granted on 3 nodes"
    assert f"waiting up to {capacity.NODES_SECONDS} s for 2 CPUs" in answers["stderr"]
    assert "the cluster has 2 CPUs" in answers["stderr"]


@SLOW
def test_folder_that_all_nodes_share_passes_and_keeps_no_trace(answers):
    assert answers["left"] == []


@SLOW
def test_resources_tell_workers_from_a_head_that_takes_no_work(answers):
    resources = answers["resources"]
    counts = {name: resources[name] for name in ("nodes", "hosts", "worker_nodes", "worker_CPU", "worker_GPU", "spot")}
    assert counts == {"nodes": 2, "hosts": 1, "worker_nodes": 1, "worker_CPU": 1, "worker_GPU": 0, "spot": 0}
    assert resources["worker_memory"] == 2**30


@SLOW
def test_folder_that_one_node_does_not_see_is_refused_with_its_address(answers):
    if "elsewhere" not in answers:
        pytest.skip("this user may not make a mount namespace (unshare --mount)")
    assert f"{answers['folder']} is not on storage that the whole cluster shares" in answers["elsewhere"]
    assert "of 3 nodes cannot read" in answers["elsewhere"]
    assert "SP500_RUNS_DIR" in answers["elsewhere"]


@pytest.mark.parametrize(
    ("now", "most", "workers", "readers", "share"),
    [
        ((1, 2), (1, 2), 2, False, 1.0),
        ((1, 2), (1, 2), 3, False, 0.66),  # one machine: a rehearsal that runs
        ((3, 2), (3, 4), 2, True, 0.5),  # as it is, with half a CPU per worker for its readers
        ((3, 2), (3, 2), 2, True, 0.5),
        ((2, 1), (5, 4), 2, True, 1.0),  # it has to grow, to all four
        ((1, 0), (5, 4), 4, False, 1.0),  # a head that was replaced: its workers are on their way
        ((2, 1), (2, 2), 2, True, 0.5),
        ((2, 1), (2, 1), 2, False, None),
        ((2, 0), (2, 0), 1, False, None),
        ((1, 0), (5, 4), 8, False, None),
    ],
)
def test_share_leaves_readers_their_part_of_the_cluster_as_it_is_or_can_be(now, most, workers, readers, share):
    have, can_have = ({"nodes": float(nodes), "CPU": float(cpus)} for nodes, cpus in (now, most))
    assert preflight.choose_share(have, can_have, workers, gpu=False, readers=readers) == share


def test_share_with_gpus_needs_one_for_each_worker():
    have, can_have = {"nodes": 1.0, "CPU": 0.0}, {"nodes": 5.0, "CPU": 16.0, "GPU": 4.0}
    assert preflight.choose_share(have, can_have, 4, gpu=True, readers=False) == 1.0
    assert preflight.choose_share(have, can_have, 5, gpu=True, readers=False) is None


def test_node_that_went_while_it_was_probed_is_waited_for_and_all_are_asked_again(monkeypatch, tmp_path):
    lists = [{"a": "10.0.0.1", "b": "10.0.0.2"}] * 2 + [{"a": "10.0.0.1", "c": "10.0.0.3"}]
    waited = []
    monkeypatch.setattr(preflight, "_nodes", lambda: lists.pop(0))
    monkeypatch.setattr(preflight.capacity, "POLL_SECONDS", 0)
    monkeypatch.setattr(preflight.capacity, "wait_again", lambda: waited.append(1))
    probe = {"10.0.0.1": True, "10.0.0.2": "the node died", "10.0.0.3": True}
    monkeypatch.setattr(preflight, "_probe_nodes", lambda nodes, *_: {at: probe[at] for at in nodes.values()})
    preflight.check_shared_storage(tmp_path)
    assert (lists, waited) == ([], [1])


def test_node_that_never_answers_is_named_after_the_last_try(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "_nodes", lambda: {"a": "10.0.0.1", "b": "10.0.0.2"})
    monkeypatch.setattr(preflight.capacity, "POLL_SECONDS", 0)
    monkeypatch.setattr(preflight, "_probe_nodes", lambda *_: {"10.0.0.1": True, "10.0.0.2": "nothing within 60 s"})
    with pytest.raises(ResourcesError, match=r"1 of 2 nodes did not answer a probe:\n  10.0.0.2: nothing within 60 s"):
        preflight.check_shared_storage(tmp_path)
