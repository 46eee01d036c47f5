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


def ask_a_cluster(folder: Path) -> dict[str, object]:
    """What preflight says of a head without CPUs and a worker, and of a third node that sees another folder."""
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=2, memory=2**30)
    answers: dict[str, object] = {"resources": preflight.resources()}
    preflight.check_shared_storage(folder)
    answers["left"] = [path.name for path in folder.iterdir()]
    if can_mount(folder):
        answers["elsewhere"] = refusal_with_a_node_elsewhere(cluster.address, folder)
    ray.shutdown()
    cluster.shutdown()
    return answers


def refusal_with_a_node_elsewhere(address: str, folder: Path) -> str:
    ray_start = [str(Path(sys.executable).with_name("ray")), "start", f"--address={address}", "--num-cpus=1", "--block"]
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(folder), *ray_start], env=os.environ
    )
    try:
        until(lambda: preflight.resources()["nodes"] == 3)
        preflight.check_shared_storage(folder)
    except ResourcesError as error:
        return str(error)
    finally:
        node.terminate()
        node.wait(timeout=120)
    return "passed"


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


def test_folder_that_all_nodes_share_passes_and_keeps_no_trace(answers):
    assert answers["left"] == []


def test_resources_tell_workers_from_a_head_that_takes_no_work(answers):
    resources = answers["resources"]
    counts = {name: resources[name] for name in ("nodes", "hosts", "worker_nodes", "worker_CPU", "worker_GPU", "spot")}
    assert counts == {"nodes": 2, "hosts": 1, "worker_nodes": 1, "worker_CPU": 2, "worker_GPU": 0, "spot": 0}
    assert resources["worker_memory"] == 2**30


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
