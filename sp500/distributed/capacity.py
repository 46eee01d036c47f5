"""The capacity of a Ray cluster: what it has, what it can grow to, and the wait in between.

A cluster may be smaller now than it can be: its autoscaler adds nodes on request, and after the head of a KubeRay
cluster was replaced the worker pods are still starting. No call of Ray 2.60 returns the largest size of such a cluster
(`get_max_resources_from_cluster_config` is None on KubeRay), so the manifest sets the variable
SP500_CLUSTER_WORKERS in the pods. Without it, the autoscaler is asked for nodes until they come or it refuses.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NotRequired, TypedDict

import ray
from pydantic import Field, ValidationError
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.autoscaler.sdk import request_resources
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.exceptions import RpcError

from sp500.config import Frozen
from sp500.errors import ConfigError, ResourcesError, undo_on_error
from sp500.formatting import some

WORKERS_VARIABLE = "SP500_CLUSTER_WORKERS"
# Set by the operator, spelled like this, on the head of a cluster that has an autoscaler.
AUTOSCALER_VARIABLE = "RAY_enable_autoscaler_v2"
# Time for new nodes: a machine from a cloud and its image take minutes.
NODES_SECONDS = 900
# Time for nodes that nothing announces, as the pods of a manifest without the variable after its head was replaced.
UNANNOUNCED_SECONDS = 120
# The autoscaler looks every 5 s. Longer, so that a view from the start of a head does not count as a refusal.
REFUSAL_SECONDS = 20
POLL_SECONDS = 2
Shares = dict[str, float]
# What this process waited for last, and has not withdrawn.
_held: Shares = {}


class Node(TypedDict):
    """The part of an entry of `ray.nodes()` that is used here."""

    Alive: bool
    NodeManagerHostname: str
    Resources: Shares
    Labels: NotRequired[dict[str, str]]


class WorkerGroup(Frozen, serialize_by_alias=True):
    """The worker group of a RayCluster, in the words of its spec: the value of SP500_CLUSTER_WORKERS, as JSON."""

    replicas: int = Field(ge=0)
    """Worker pods without an autoscaler."""
    max_replicas: int = Field(ge=0, alias="maxReplicas")
    """Worker pods that the autoscaler may start in all."""
    cpus: int = Field(ge=0, alias="CPU")
    """CPUs of one worker, as Ray counts them: the limit, rounded up."""
    gpus: int = Field(0, ge=0, alias="GPU")
    """GPUs of one worker."""


@contextmanager
def declare_workers(replicas: int, cpus: int) -> Iterator[None]:
    """Declare, inside the block and to processes started in it, that the cluster keeps this many workers.

    0: a head that does the work itself.
    """
    group = WorkerGroup(replicas=replicas, maxReplicas=replicas, CPU=cpus, GPU=0)
    earlier = os.environ.get(WORKERS_VARIABLE)
    os.environ[WORKERS_VARIABLE] = group.model_dump_json()
    try:
        yield
    finally:
        os.environ.pop(WORKERS_VARIABLE)
        if earlier is not None:
            os.environ[WORKERS_VARIABLE] = earlier


def resources() -> Shares:
    """Return what the cluster has: CPU, GPU, memory and object_store_memory in bytes, nodes, accelerator_type:NAME.

    For the cost of a run also `hosts` of all nodes, `worker_nodes` (those with a CPU), of the largest of these
    `worker_CPU`, `worker_GPU` and `worker_memory`, and `spot` (1: all of them are labelled so).
    """
    total = ray.cluster_resources()
    known = ("CPU", "GPU", "memory", "object_store_memory")
    totals = {name: value for name, value in total.items() if name in known or name.startswith("accelerator_type:")}
    nodes: list[Node] = ray.nodes()
    alive = [node for node in nodes if node["Alive"]]
    return {**totals, "nodes": float(len(alive)), **_workers(alive)}


def manifest_limits() -> Shares | None:
    """Return the CPUs, GPUs and nodes that the cluster's manifest allows. None if it sets no limits.

    Raises ConfigError for a value that is not a worker group.
    """
    group = _read_group()
    if group is None:
        return None
    count = _count_workers(group)
    return {"CPU": float(count * group.cpus), "GPU": float(count * group.gpus), "nodes": count + 1.0}


def list_nodes() -> list[Shares]:
    """Return CPU and GPU of each node that takes work: of those that there are or, if that is more, may come."""
    nodes: list[Node] = ray.nodes()
    shares = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")]
    have = [{name: share.get(name, 0.0) for name in ("CPU", "GPU")} for share in shares]
    group = _read_group()
    allowed = [{"CPU": float(group.cpus), "GPU": float(group.gpus)}] * _count_workers(group) if group else []
    return max(have, allowed, key=lambda each: sum(share["CPU"] for share in each))


def _read_group() -> WorkerGroup | None:
    text = os.environ.get(WORKERS_VARIABLE, "")
    if not text:
        return None
    try:
        return WorkerGroup.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(
            f"{WORKERS_VARIABLE} = {text!r} is not a worker group ({error.errors()[0]['msg']}). Expected JSON with the "
            'values of the RayCluster, for example {"replicas": 2, "maxReplicas": 4, "CPU": 1, "GPU": 0}'
        ) from None


def _count_workers(group: WorkerGroup) -> int:
    return group.max_replicas if _has_autoscaler() else group.replicas


def largest(have: Shares, allowed: Shares | None) -> Shares:
    """Return the larger of what the cluster has and what its manifest allows, by resource, always with CPU and GPU."""
    # A head alone has no CPU, and Ray leaves out what is zero.
    known = {"CPU": 0.0, "GPU": 0.0, **have}
    return {name: max(value, (allowed or {}).get(name, 0.0)) for name, value in known.items()}


def most() -> Shares:
    """Return what the cluster can have: as much as it has, or as much as its manifest allows."""
    return largest(resources(), manifest_limits())


def wait_for(wanted: Shares) -> None:
    """Wait until the cluster has this much CPU and GPU in all; its autoscaler is asked for it, and to keep it.

    Without that, the autoscaler takes away a worker that was idle while the others started (300 s in our manifest) in
    the very turn in which the last one comes, before anything runs there. Call `withdraw` once the work has begun.

    Raises ResourcesError as soon as the autoscaler refuses, or when the nodes have not come in time.
    """
    _held.update(wanted)
    started = time.monotonic()
    with undo_on_error(withdraw):
        request_resources(bundles=_bundles(wanted))
        if covers(resources(), wanted):
            return
        have = _poll(wanted, started)
    _report(f"the cluster has {describe(have)} after {time.monotonic() - started:.0f} s")


def wait_again() -> None:
    """Wait again for the resources of the last wait after a node was lost. Raises ResourcesError as `wait_for`."""
    if _held:
        wait_for(dict(_held))


def withdraw() -> None:
    """Let the autoscaler remove idle nodes again. The processes of the work call it, or else its driver's end."""
    _held.clear()
    request_resources(bundles=[])


def withdraw_held() -> None:
    """Withdraw what this process asked for, if anything."""
    if _held:
        withdraw()


def _bundles(wanted: Shares) -> list[Shares]:
    return [{name: 1.0} for name in ("CPU", "GPU") for _ in range(math.ceil(wanted.get(name, 0.0)))]


def _poll(wanted: Shares, started: float) -> Shares:
    """Request the resources and look, until they are there."""
    bundles, announced = _bundles(wanted), manifest_limits() is not None
    refused_since, reported = None, ""
    while not covers(have := resources(), wanted):
        # At every look: Ray keeps one request for the whole cluster, and that of another driver replaces it.
        request_resources(bundles=bundles)
        state, now = _autoscaling_state(), time.monotonic()
        bound = NODES_SECONDS if announced or state is not None else UNANNOUNCED_SECONDS
        line = f"waiting up to {bound} s for {describe(wanted)}; the cluster has {describe(have)}"
        if line != reported:
            _report(reported := line)
        refused = state is not None and refuses(state.infeasible_cluster_resource_constraints, bundles)
        # What the manifest announces comes. `worker_share` has refused more than that.
        refused_since = (refused_since or now) if refused and not announced else None
        if refused_since and now - refused_since >= (REFUSAL_SECONDS if _has_autoscaler() else UNANNOUNCED_SECONDS):
            raise ResourcesError(
                f"{describe(wanted)} were requested; the cluster has {describe(have)}, and its autoscaler cannot add "
                "the rest. Use fewer workers, or raise maxReplicas of the RayCluster"
            )
        if now - started > bound:
            raise ResourcesError(
                f"{describe(wanted)} were requested; after {bound} s the cluster has {describe(have)}. Use fewer "
                "workers, or find out what its pods wait for: kubectl get events"
            )
        time.sleep(POLL_SECONDS)
    return have


def _has_autoscaler() -> bool:
    """Return whether the operator gave this cluster an autoscaler.

    Without one a head of Ray answers for it all the same: whatever is not there yet, it calls infeasible.
    """
    return os.environ.get(AUTOSCALER_VARIABLE, "").lower() in {"1", "true"}


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def covers(have: Shares, wanted: Shares) -> bool:
    """Return whether there is as much of everything as wanted."""
    return all(have.get(name, 0.0) >= value for name, value in wanted.items())


def describe(shares: Shares) -> str:
    """Return CPUs and GPUs as text, and nodes if they are given."""
    text = f"{some(shares.get('CPU', 0.0), 'CPU')} and {some(shares.get('GPU', 0.0), 'GPU')}"
    return f"{text} on {some(shares['nodes'], 'node')}" if "nodes" in shares else text


def refuses(infeasible: Iterable[Any], bundles: list[Shares]) -> bool:
    """Return whether one of the constraints that the autoscaler calls infeasible is the request for these bundles."""
    wanted = Counter(frozenset(bundle.items()) for bundle in bundles)
    return any(
        wanted
        == {frozenset(part.request.resources_bundle.items()): part.count for part in constraint.resource_requests}
        for constraint in infeasible
    )


def _autoscaling_state() -> Any | None:
    """Return what the autoscaler (v2) last reported to the cluster; None if there is none.

    `ray.autoscaler.v2.sdk.get_cluster_status` makes the same call and drops what is infeasible.
    """
    reply = GetClusterStatusReply()
    try:
        reply.ParseFromString(GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=10))
    except RpcError:
        return None
    return reply.autoscaling_state if reply.autoscaling_state.autoscaler_state_version else None


def _workers(alive: list[Node]) -> Shares:
    """Return the nodes that accept work, and their places. A head that accepts none is not a worker."""
    nodes = [node for node in alive if node["Resources"].get("CPU")]
    biggest: Shares = max((node["Resources"] for node in nodes), key=lambda shares: shares["CPU"], default={})
    market = [node.get("Labels", {}).get("ray.io/market-type") for node in nodes]
    return {
        "hosts": float(len({node["NodeManagerHostname"] for node in alive})),
        "worker_nodes": float(len(nodes)),
        **{f"worker_{name}": float(biggest.get(name, 0.0)) for name in ("CPU", "GPU", "memory")},
        "spot": float(bool(market) and set(market) == {"spot"}),
    }
