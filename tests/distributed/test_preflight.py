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
from sp500.machine.memory import run_in_subprocess

# A node in a mount namespace of its own, which sees another folder under the same path.
ELSEWHERE = 'mount -t tmpfs none "$1" && shift && exec "$@"'


def two_nodes(folder: Path) -> list[str]:
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    preflight.check_shared_storage(folder)
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
        preflight.check_shared_storage(folder)
    except ResourcesError as error:
        return str(error)
    finally:
        node.terminate()
        node.wait(timeout=120)
        ray.shutdown()
        cluster.shutdown()
    return "passed"


def until(ready):
    deadline = time.monotonic() + 240
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def can_mount(folder: Path) -> bool:
    argv = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def test_folder_that_all_nodes_share_passes_and_keeps_no_trace(tmp_path):
    assert run_in_subprocess(two_nodes, tmp_path) == []


def test_resources_tell_workers_from_a_head_that_takes_no_work(tmp_path):
    found = run_in_subprocess(head_and_worker, tmp_path)
    told = {name: found[name] for name in ("nodes", "hosts", "worker_nodes", "worker_CPU", "worker_GPU", "spot")}
    assert told == {"nodes": 2, "hosts": 1, "worker_nodes": 1, "worker_CPU": 2, "worker_GPU": 0, "spot": 0}
    assert found["worker_memory"] == 2**30


def test_folder_that_one_node_does_not_see_is_refused_with_its_address(tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("this user may not make a mount namespace (unshare --mount)")
    said = run_in_subprocess(a_node_elsewhere, tmp_path)
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
