"""A manifest as nodes: the shape of its pods, and what is said not to be there."""

from pathlib import Path

import pytest
import yaml

from sp500.jobs.local_cluster import plan
from sp500.jobs.manifests import manifest

MANIFEST = Path(__file__).parents[3] / "cluster" / "raycluster.yaml"


@pytest.fixture
def plain():
    return next(one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "RayCluster")


def cluster_of(plain):
    [found] = manifest.clusters(plain)
    return found


def test_head_has_no_cpus_and_each_group_the_workers_it_starts_with(plain):
    head, *workers = plan.nodes(cluster_of(plain), {})
    assert (head.head, head.cpus, head.params["memory"]) == (True, 0, str(3 * 2**30))
    assert [(node.name, node.cpus) for node in workers] == [("workers-0", 1), ("workers-1", 1)]
    assert workers[0].params["memory"] == str(2560 * 2**20)
    assert workers[0].params["object-store-memory"] == "536870912"
    assert workers[0].environment["RAY_NODE_TYPE_NAME"] == "workers"


def test_part_of_a_cpu_counts_as_one_as_the_operator_counts(plain):
    container = plain["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1500m"}}
    assert plan.nodes(cluster_of(plain), {})[1].cpus == 2


def test_labels_and_several_groups_become_nodes_of_their_own(plain):
    [group] = plain["spec"]["workerGroupSpecs"]
    plain["spec"]["workerGroupSpecs"] = [group | {"replicas": 1}, group | {"groupName": "big", "replicas": 1}]
    plain["spec"]["workerGroupSpecs"][1]["labels"] = {"zone": "a", "disk": "fast"}
    names = [node.name for node in plan.nodes(cluster_of(plain), {})]
    assert names == ["head", "workers-0", "big-0"]
    assert plan.nodes(cluster_of(plain), {})[2].params["labels"] == "zone=a,disk=fast"


def test_paths_on_a_claim_lie_in_the_folder_that_stands_for_it(plain, tmp_path):
    container = plain["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "CACHE", "value": "/runs/cache"})
    container["env"].append({"name": "OTHER", "value": "/runsheet"})
    found = cluster_of(plain)
    assert plan.claims(found) == ["sp500-data", "sp500-runs"]
    environment = plan.nodes(found, {"sp500-runs": tmp_path})[0].environment
    assert environment["SP500_RUNS_DIR"] == str(tmp_path)
    assert environment["CACHE"] == str(tmp_path / "cache")
    assert environment["OTHER"] == "/runsheet"


def test_values_from_secrets_are_left_out(plain):
    container = plain["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})
    assert "KEY" not in plan.nodes(cluster_of(plain), {})[0].environment


def test_commands_join_the_head_on_this_machine_alone(plain):
    head, worker, _ = plan.nodes(cluster_of(plain), {})
    where = {"ray": Path("ray"), "port": 7001, "dashboard": 8265, "folder": Path("/tmp/x")}
    argv = [plan.command(node, **where) for node in (head, worker)]
    assert argv[0][:4] == ["ray", "start", "--head", "--block"]
    assert {"--num-cpus=0", "--port=7001", "--dashboard-port=8265", "--dashboard-host=127.0.0.1"} <= set(argv[0])
    assert {"--num-cpus=1", "--address=127.0.0.1:7001"} <= set(argv[1])
    assert "--head" not in argv[1]
    assert all("--node-ip-address=127.0.0.1" in one for one in argv)
