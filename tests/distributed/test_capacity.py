"""Workers that a cluster does not have yet: awaited where they can come, refused where they cannot.

Nodes are raylets of this machine that Ray's own autoscaler (v2) starts with its provider of local nodes. Those that
join late without one are in `test_preflight.py`.
"""

import io
import json
import os
import socket
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
from ray._private import services
from ray._raylet import GcsClient
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
from ray.autoscaler.v2.sdk import get_cluster_resource_state
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from worker_requests import FOUR, STORE, refusal

from sp500.distributed import capacity, session
from sp500.errors import ConfigError, ResourcesError
from sp500.machine.memory import run_in_subprocess


def an_autoscaled_cluster(folder: Path) -> dict[str, object]:
    """A head without CPUs whose autoscaler may start one worker, which nothing but the autoscaler knows."""
    os.environ.pop(capacity.WORKERS_VARIABLE, None)
    os.environ |= session.LOCAL_ENVIRONMENT
    capacity.REFUSAL_SECONDS = 3
    answers: dict[str, object] = {}
    with autoscaler(folder, largest=1), redirect_stderr(io.StringIO()) as said:
        answers["too many"] = refusal(2)
        answers["stderr"] = said.getvalue()
        answers["refused"] = requested()
        answers["granted"] = refusal(1)
        answers["held"] = requested()
        session.shut_down()
        ray.init(address="auto", log_to_driver=False)
        answers["ended"] = requested()
    return answers


def requested() -> list[dict[str, float]]:
    """What the cluster is asked to keep, as its GCS tells the autoscaler."""
    state = get_cluster_resource_state(GcsClient(ray.get_runtime_context().gcs_address))
    return [
        dict(part.request.resources_bundle)
        for constraint in state.cluster_resource_constraints
        for part in constraint.resource_requests
    ]


@contextmanager
def autoscaler(folder: Path, largest: int):
    """A connected cluster with Ray's own autoscaler, version 2, which starts raylets of one CPU on this machine."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    fake = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    worker = {"resources": {"CPU": 1, "object_store_memory": STORE}, "node_config": {}, "max_workers": largest}
    config = {
        "cluster_name": "test",
        "max_workers": largest,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": worker | {"min_workers": 0},
        },
        "provider": {
            "type": "external",
            "module": fake,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "gcs_address": f"{services.get_node_ip_address()}:{port}",
        },
    }
    # Keys without which the autoscaler does not read its configuration.
    shell = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    config |= {"file_mounts": {}, "cluster_synced_files": [], **{f"{name}_commands": [] for name in shell}}
    (folder / "autoscaler.json").write_text(json.dumps(config))
    os.environ |= {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    }
    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "include_log_monitor": False,
        "gcs_server_port": port,
        "object_store_memory": STORE,
        "autoscaling_config": str(folder / "autoscaler.json"),
    }
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)
    try:
        yield
    finally:
        # The raylets that the autoscaler started are not the cluster's, which would leave them.
        family = psutil.Process().children(recursive=True)
        ray.shutdown()
        cluster.shutdown()
        for process in family:
            if process.is_running():
                process.kill()


@pytest.mark.timeout(900)  # nodes one after the other, a minute each on a machine with other work
def test_autoscaler_without_a_word_in_the_manifest_is_asked_and_its_refusal_ends_the_wait(tmp_path):
    answers = run_in_subprocess(an_autoscaled_cluster, tmp_path)
    assert "the cluster has 0 CPUs" in answers["too many"]
    assert "its autoscaler cannot add the rest" in answers["too many"]
    assert f"waiting up to {capacity.NODES_SECONDS} s for 2 CPUs" in answers["stderr"]
    assert answers["granted"] == "granted on 2 nodes"
    # Kept until the work has begun, or its driver ends.
    assert [answers[when] for when in ("refused", "held", "ended")] == [[], [{"CPU": 1.0}], []]


@pytest.mark.parametrize(
    ("manifest", "autoscaler", "comes_after", "ends_after"),
    [
        (FOUR, "", 300, 300),  # a RayJob's head that was replaced: Ray's head answers for an autoscaler it has not
        (FOUR, "1", 300, 300),
        (None, "", 60, 60),
        (None, "", 300, 120),
        (None, "1", 300, 20),
    ],
)
def test_refusal_counts_where_an_autoscaler_says_it_and_the_manifest_announces_nothing(
    monkeypatch, manifest, autoscaler, comes_after, ends_after
):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    infeasible = autoscaler_pb2.AutoscalingState()
    part = infeasible.infeasible_cluster_resource_constraints.add().resource_requests.add(count=2)
    part.request.resources_bundle["CPU"] = 1.0
    monkeypatch.setattr(capacity, "time", clock)
    monkeypatch.setattr(capacity, "_held", {})
    monkeypatch.setattr(capacity, "request_resources", lambda bundles: None)
    monkeypatch.setattr(capacity, "_autoscaling_state", lambda: infeasible)
    monkeypatch.setattr(capacity, "resources", lambda: {"CPU": 2.0 if now[0] >= comes_after else 0.0, "nodes": 3.0})
    monkeypatch.setenv(capacity.AUTOSCALER_VARIABLE, autoscaler)
    monkeypatch.setenv(capacity.WORKERS_VARIABLE, json.dumps(manifest) if manifest else "")
    with nullcontext() if ends_after == comes_after else pytest.raises(ResourcesError, match="cannot add the rest"):
        capacity.wait_for({"CPU": 2.0})
    assert ends_after <= now[0] <= ends_after + 2 * capacity.POLL_SECONDS


@pytest.mark.parametrize(("autoscaler", "cpus"), [(None, 2.0), ("1", 4.0), ("true", 4.0), ("0", 2.0)])
def test_promise_is_the_replicas_or_with_an_autoscaler_the_most_of_them(monkeypatch, autoscaler, cpus):
    monkeypatch.setenv(capacity.WORKERS_VARIABLE, json.dumps(FOUR))
    monkeypatch.delenv(capacity.AUTOSCALER_VARIABLE, raising=False)
    if autoscaler:
        monkeypatch.setenv(capacity.AUTOSCALER_VARIABLE, autoscaler)
    assert capacity.manifest_limits() == {"CPU": cpus, "GPU": 0.0, "nodes": cpus + 1}


def test_largest_size_counts_what_is_there_and_what_may_come():
    have, allowed = {"nodes": 1.0, "memory": 9.0}, {"CPU": 16.0, "GPU": 4.0, "nodes": 5.0}
    assert capacity.largest(have, allowed) == {"CPU": 16.0, "GPU": 4.0, "nodes": 5.0, "memory": 9.0}
    assert capacity.largest(have, None) == {"CPU": 0.0, "GPU": 0.0, "nodes": 1.0, "memory": 9.0}


@pytest.mark.parametrize("value", ["four", "[]", "{}", '{"replicas": 2}', json.dumps(FOUR | {"CPU": -1})])
def test_variable_that_is_not_a_worker_group_is_refused_with_an_example(monkeypatch, value):
    monkeypatch.setenv(capacity.WORKERS_VARIABLE, value)
    with pytest.raises(ConfigError, match=r"SP500_CLUSTER_WORKERS.*maxReplicas"):
        capacity.manifest_limits()


def test_refusal_is_of_the_request_itself_and_not_of_another_drivers():
    infeasible = autoscaler_pb2.AutoscalingState().infeasible_cluster_resource_constraints
    part = infeasible.add().resource_requests.add(count=3)
    part.request.resources_bundle["CPU"] = 1.0
    assert capacity.refuses(infeasible, [{"CPU": 1.0}] * 3)
    assert not capacity.refuses(infeasible, [{"CPU": 1.0}] * 2)
    assert not capacity.refuses(infeasible, [{"GPU": 1.0}] * 3)
    assert not capacity.refuses([], [{"CPU": 1.0}] * 3)
