"""What a cluster lacks is said before anything starts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from sp500.distributed import preflight
from sp500.errors import ResourcesError
from sp500.memory import in_child

# A node in a mount namespace of its own, which sees another folder under the same path.
ELSEWHERE = 'mount -t tmpfs none "$1" && shift && exec "$@"'


def two_nodes(folder: Path) -> list[str]:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    preflight.shared(folder)
    left = [path.name for path in folder.iterdir()]
    ray.shutdown()
    cluster.shutdown()
    return left


def head_and_worker(folder: Path) -> dict[str, float]:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=2, memory=2**30)
    found = preflight.resources()
    ray.shutdown()
    cluster.shutdown()
    return found


def a_node_elsewhere(folder: Path) -> str:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    start = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        f"--address={cluster.address}",
        "--num-cpus=1",
        "--block",
    ]
    node = subprocess.Popen(["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), *start], env=os.environ)
    try:
        until(lambda: preflight.resources()["nodes"] == 2)
        preflight.shared(folder)
    except ResourcesError as error:
        return str(error)
    finally:
        node.terminate()
        node.wait(timeout=30)
        ray.shutdown()
        cluster.shutdown()
    return "passed"


def a_node_that_comes(folder: Path) -> list[object]:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1})
    found: list[object] = []
    preflight.NODES_SECONDS = 1
    try:
        preflight.grown({"CPU": 2.0})
    except ResourcesError as error:
        found.append(str(error))
    preflight.NODES_SECONDS = 60
    cluster.add_node(num_cpus=1, wait=False)
    preflight.grown({"CPU": 2.0})
    found.append(preflight.resources()["CPU"])
    ray.shutdown()
    cluster.shutdown()
    return found


def until(ready):
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def can_mount(folder: Path) -> bool:
    argv = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def test_folder_that_all_nodes_share_passes_and_keeps_no_trace(tmp_path):
    assert in_child(two_nodes, tmp_path) == []


def test_resources_tell_workers_from_a_head_that_takes_no_work(tmp_path):
    found = in_child(head_and_worker, tmp_path)
    told = {name: found[name] for name in ("nodes", "hosts", "worker_nodes", "worker_CPU", "worker_GPU", "spot")}
    assert told == {"nodes": 2, "hosts": 1, "worker_nodes": 1, "worker_CPU": 2, "worker_GPU": 0, "spot": 0}
    assert found["worker_memory"] == 2**30


def test_folder_that_one_node_does_not_see_is_refused_with_its_address(tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("this user may not make a mount namespace (unshare --mount)")
    said = in_child(a_node_elsewhere, tmp_path)
    assert f"{tmp_path} is not on storage that the whole cluster shares" in said
    assert "of 2 nodes cannot read" in said
    assert "SP500_RUNS_DIR" in said


@pytest.mark.parametrize(
    ("now", "most", "workers", "readers", "share"),
    [
        ((1, 2), (1, 2), 2, False, 1.0),
        ((1, 2), (1, 2), 3, False, 0.66),  # one machine: a rehearsal that runs
        ((3, 2), (3, 4), 2, True, 0.5),  # as it is, with half a CPU per worker for its readers
        ((3, 2), (3, 2), 2, True, 0.5),
        ((2, 1), (2, 4), 2, True, 1.0),  # it has to grow, to all four
        ((2, 1), (2, 2), 2, True, 0.5),
        ((2, 1), (2, 1), 2, False, None),
        ((2, 0), (2, 0), 1, False, None),
    ],
)
def test_share_leaves_readers_their_part_and_what_cannot_be_is_refused(monkeypatch, now, most, workers, readers, share):
    asked = []
    monkeypatch.setattr(preflight, "resources", lambda: {"nodes": float(now[0]), "CPU": float(now[1]), "GPU": 0.0})
    monkeypatch.setattr(preflight, "most", lambda: {"nodes": float(most[0]), "CPU": float(most[1]), "GPU": 0.0})
    monkeypatch.setattr(preflight, "grown", asked.append)
    if share is None:
        with pytest.raises(ResourcesError, match=f"{workers} workers with a CPU each were asked for"):
            preflight.worker_share(workers, gpu=False, readers=readers)
        return
    assert preflight.worker_share(workers, gpu=False, readers=readers) == {"CPU": share}
    assert asked[0]["CPU"] <= most[1]
    assert asked[0]["CPU"] == pytest.approx(workers * share * (2 if readers else 1))


def test_what_an_autoscaler_may_add_counts_also_where_nothing_is_there_yet(monkeypatch):
    class Promised:
        def get_max_resources_from_cluster_config(self):
            return {"CPU": 16, "GPU": 4, "memory": 7}

    monkeypatch.setattr(preflight, "resources", lambda: {"nodes": 1.0, "memory": 9.0})
    monkeypatch.setattr(preflight, "state", Promised())
    assert preflight.most() == {"CPU": 16.0, "GPU": 4.0, "nodes": 1.0, "memory": 9.0}
    assert preflight.use_gpu("auto", 4)


def test_workers_wait_for_nodes_on_their_way_but_not_for_ever(tmp_path):
    said, cpus = in_child(a_node_that_comes, tmp_path)
    assert "2 CPUs and 0 GPUs were asked for" in said
    assert "after 1 s it has 1 CPUs" in said
    assert cpus == 2
