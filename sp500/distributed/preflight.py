"""Before anything starts on a cluster: do all its nodes see the storage, and can it give what is asked for?

Ray finds out late: a folder that only one node has fails at the first checkpoint or loses it without a word, and
workers that no node can hold are waited for without end.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import ray
from ray._private.state import state
from ray.autoscaler.sdk import request_resources
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sp500.errors import ResourcesError

PROBE_SECONDS = 60
# Time for new nodes: a machine from a cloud and its image take minutes.
NODES_SECONDS = 900
POLL_SECONDS = 2
Shares = dict[str, float]


def resources() -> Shares:
    """What the cluster has: CPU, GPU, memory and object_store_memory in bytes, nodes."""
    found = ray.cluster_resources()
    kept = {name: found[name] for name in ("CPU", "GPU", "memory", "object_store_memory") if name in found}
    return {**kept, "nodes": float(len(_nodes()))}


def most() -> Shares:
    """What it can have: as much as `resources`, or what its autoscaler may add up to where that is known."""
    have = resources()
    # No public call tells; Ray Train asks the same. None without an autoscaler.
    promised = state.get_max_resources_from_cluster_config() or {}
    return {name: max(value, float(promised.get(name, 0))) for name, value in {"GPU": 0.0, **have}.items()}


def worker_share(num_workers: int, *, gpu: bool, readers: bool = False) -> Shares:
    """Resources of one of `num_workers`. Raises ResourcesError, at once, for what the cluster cannot give.

    On one machine with fewer cores than workers each takes its part of a core: slower, but a rehearsal that runs. With
    `readers`, half of a core per worker is left to the tasks that read for it. A cluster that grows is waited for.
    """
    have = most()
    cpus = have.get("CPU", 0.0) / (2 if readers else 1)
    if gpu and have["GPU"] < num_workers:
        raise ResourcesError(
            f"{num_workers} workers with a GPU each were asked for; the cluster has {have['GPU']:g} GPUs and "
            f"{have.get('CPU', 0.0):g} CPUs: fewer --num-workers, or --train.device cpu"
        )
    if cpus >= num_workers:
        share = 1.0
    elif (have["nodes"] == 1 or have["CPU"] >= num_workers) and cpus:
        share = max(int(100 * cpus / num_workers) / 100, 0.01)
    else:
        raise ResourcesError(
            f"{num_workers} workers with a CPU each were asked for; the cluster has {cpus:g} CPUs on "
            f"{have['nodes']:g} nodes: fewer --num-workers, or more nodes"
        )
    each = {"CPU": share, "GPU": 1.0} if gpu else {"CPU": share}
    grown(num_workers, each)
    return each


def use_gpu(device: str, num_workers: int) -> bool:
    """Whether workers take a GPU: where asked for, and with auto where the cluster has one for each."""
    return device == "cuda" or (device == "auto" and most()["GPU"] >= num_workers)


def shared(folder: Path) -> None:
    """Every node reads what this process writes into the folder, and can write there.

    Raises ResourcesError naming the nodes that do not. A single node shares with itself; several on one machine share a
    path, and pass.
    """
    nodes = _nodes()
    if len(nodes) < 2:
        return
    probe, text = folder.resolve() / f".probe-{uuid.uuid4().hex}", uuid.uuid4().hex
    probe.write_text(text)
    try:
        blind = _blind(nodes, probe, text)
    finally:
        probe.unlink()
    if blind:
        raise ResourcesError(
            f"{folder.resolve()} is not on storage that the whole cluster shares: {', '.join(blind)} of {len(nodes)} "
            "nodes cannot read what the driver wrote there, or not write. Give --runs-dir (or SP500_RUNS_DIR) a folder "
            "that every node mounts; cluster/raycluster.yaml has /runs"
        )


def _blind(nodes: dict[str, str], probe: Path, text: str) -> list[str]:
    """Addresses of the nodes that do not see the file, or do not answer."""
    asked = {
        address: ray.remote(_sees)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), num_cpus=0)
        .remote(str(probe), text)
        for node, address in nodes.items()
    }
    deadline = time.monotonic() + PROBE_SECONDS
    found = []
    for address, answer in asked.items():
        try:
            seen = ray.get(answer, timeout=max(deadline - time.monotonic(), 0.1))
        except (GetTimeoutError, RayError):
            seen = False
        if not seen:
            found.append(address)
    return found


def _sees(probe: str, text: str) -> bool:
    path = Path(probe)
    try:
        return path.read_text() == text and os.access(path.parent, os.W_OK)
    except OSError:
        return False


def grown(count: int, each: Shares) -> None:
    """Wait until the cluster has room for `count` workers with `each` of CPU and GPU; its autoscaler is asked for them.

    Raises ResourcesError when they have not come in time.
    """
    names = [name for name in ("CPU", "GPU") if each.get(name)]
    if _holds(resources(), count, each, names):
        return
    request_resources(bundles=[{name: each[name] for name in names}] * count)
    try:
        deadline = time.monotonic() + NODES_SECONDS
        while not _holds(resources(), count, each, names):
            if time.monotonic() > deadline:
                raise ResourcesError(
                    f"{count} workers with {_said(each, names)} each were asked for, which the cluster's autoscaler "
                    f"may add; after {NODES_SECONDS} s it has {_said(resources(), names)}. Its pods wait for "
                    "something: kubectl get events says for what"
                )
            time.sleep(POLL_SECONDS)
    finally:
        request_resources(bundles=[])


def _holds(have: Shares, count: int, each: Shares, names: list[str]) -> bool:
    return all(have.get(name, 0.0) >= count * each[name] for name in names)


def _said(shares: Shares, names: list[str]) -> str:
    return " and ".join(f"{shares.get(name, 0.0):g} {name}s" for name in names)


def _nodes() -> dict[str, str]:
    """Address of each living node, with a name where two have the same, by its id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in alive}
