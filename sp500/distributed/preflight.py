"""Before anything starts on a cluster: do all its nodes see the storage, and can it give what is asked for?

Ray finds out late: a folder that only one node has fails at the first checkpoint or loses it without a word, and
workers that no node can hold are waited for without end.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from pathlib import Path
from typing import Any

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
    """What the cluster has: CPU, GPU, memory and object_store_memory in bytes, nodes, accelerator_type:NAME.

    And what a price is made of: `hosts` of all nodes, `worker_nodes` (those with a CPU), of the largest of these
    `worker_CPU`, `worker_GPU` and `worker_memory`, and `spot` (1: all of them are labelled so).
    """
    found = ray.cluster_resources()
    known = ("CPU", "GPU", "memory", "object_store_memory")
    kept = {name: much for name, much in found.items() if name in known or name.startswith("accelerator_type:")}
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {**kept, "nodes": float(len(alive)), **_workers(alive)}


def most() -> Shares:
    """What it can have: as much as `resources`, or what its autoscaler may add up to where that is known."""
    have = resources()
    # No public call tells; Ray Train asks the same. None without an autoscaler.
    promised = state.get_max_resources_from_cluster_config() or {}
    # A head alone has no CPU, and Ray does not name what is not there.
    known = {"CPU": 0.0, "GPU": 0.0, **have}
    return {name: max(value, float(promised.get(name, 0))) for name, value in known.items()}


def worker_share(num_workers: int, *, gpu: bool, readers: bool = False) -> Shares:
    """Resources of one of `num_workers`. Raises ResourcesError, at once, for what the cluster cannot give.

    On one machine with fewer cores than workers each takes its part of a core: slower, but a rehearsal that runs. With
    `readers`, half of a core per worker is left to the tasks that read for it. A cluster that can grow is waited for
    where it is too small as it is.
    """
    for have in (resources(), most()):
        if share := _share(have, num_workers, gpu=gpu, readers=readers):
            each = {"CPU": share, "GPU": 1.0} if gpu else {"CPU": share}
            grown({"CPU": num_workers * share * (2 if readers else 1), "GPU": each.get("GPU", 0.0) * num_workers})
            return each
    have = most()
    said = f"{have['GPU']:g} GPUs and {have['CPU']:g} CPUs on {have['nodes']:g} nodes"
    if gpu:
        raise ResourcesError(
            f"{num_workers} workers with a GPU each were asked for; the cluster has {said}: fewer --num-workers, or "
            "--train.device cpu"
        )
    raise ResourcesError(
        f"{num_workers} workers with a CPU each were asked for; the cluster has {said}: fewer --num-workers, or more "
        "nodes"
    )


def _share(have: Shares, num_workers: int, *, gpu: bool, readers: bool) -> float | None:
    """Part of a CPU for each worker; None where the cluster has too little."""
    cpus = have.get("CPU", 0.0) / (2 if readers else 1)
    if (gpu and have.get("GPU", 0.0) < num_workers) or not cpus:
        return None
    if cpus >= num_workers:
        return 1.0
    together = have["nodes"] == 1 or have["CPU"] >= num_workers
    return max(int(100 * cpus / num_workers) / 100, 0.01) if together else None


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
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(text)
    except OSError as error:
        raise ResourcesError(f"{probe.parent}: cannot be written to ({error.strerror})") from error
    try:
        seen = _seen(nodes, probe, text)
    finally:
        probe.unlink()
    if silent := {address: why for address, why in seen.items() if isinstance(why, str)}:
        lines = [f"  {address}: {why}" for address, why in silent.items()]
        raise ResourcesError("\n".join([f"{len(silent)} of {len(nodes)} nodes did not answer a probe:", *lines]))
    if blind := [address for address, found in seen.items() if not found]:
        raise ResourcesError(
            f"{folder.resolve()} is not on storage that the whole cluster shares: {', '.join(blind)} of {len(nodes)} "
            "nodes cannot read what the driver wrote there, or not write. Give --runs-dir (or SP500_RUNS_DIR) a folder "
            "that every node mounts; cluster/raycluster.yaml has /runs"
        )


def _seen(nodes: dict[str, str], probe: Path, text: str) -> dict[str, bool | str]:
    """For each node's address whether it sees the file, or why it did not answer."""
    asked = {
        address: ray.remote(_sees)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), num_cpus=0)
        .remote(str(probe), text)
        for node, address in nodes.items()
    }
    deadline = time.monotonic() + PROBE_SECONDS
    found: dict[str, bool | str] = {}
    for address, answer in asked.items():
        try:
            found[address] = bool(ray.get(answer, timeout=max(deadline - time.monotonic(), 0.1)))
        except GetTimeoutError:
            ray.cancel(answer)
            found[address] = f"nothing within {PROBE_SECONDS} s"
        except RayError as error:
            found[address] = str(error).splitlines()[0]
    return found


def _sees(probe: str, text: str) -> bool:
    path = Path(probe)
    try:
        return path.read_text() == text and os.access(path.parent, os.W_OK)
    except OSError:
        return False


def grown(wanted: Shares) -> None:
    """Wait until the cluster has so much of CPU and GPU in all; its autoscaler is asked for it.

    Raises ResourcesError when that has not come in time. (Ray keeps one such request for the whole cluster: of two
    drivers that ask at once, the later counts.)
    """
    if _holds(resources(), wanted):
        return
    request_resources(bundles=[{name: 1} for name in ("CPU", "GPU") for _ in range(math.ceil(wanted.get(name, 0.0)))])
    try:
        deadline = time.monotonic() + NODES_SECONDS
        while not _holds(resources(), wanted):
            if time.monotonic() > deadline:
                raise ResourcesError(
                    f"{_said(wanted)} were asked for, which the cluster's autoscaler may add; after {NODES_SECONDS} s "
                    f"it has {_said(resources())}. Its pods wait for something: kubectl get events says for what"
                )
            time.sleep(POLL_SECONDS)
    finally:
        request_resources(bundles=[])


def _workers(alive: list[dict[str, Any]]) -> Shares:
    """The nodes that take work, and where they are. A head that takes none is no worker."""
    nodes = [node for node in alive if node["Resources"].get("CPU")]
    largest: Shares = max((node["Resources"] for node in nodes), key=lambda found: float(found["CPU"]), default={})
    market = [node.get("Labels", {}).get("ray.io/market-type") for node in nodes]
    return {
        "hosts": float(len({node["NodeManagerHostname"] for node in alive})),
        "worker_nodes": float(len(nodes)),
        **{f"worker_{name}": float(largest.get(name, 0.0)) for name in ("CPU", "GPU", "memory")},
        "spot": float(bool(market) and set(market) == {"spot"}),
    }


def _holds(have: Shares, wanted: Shares) -> bool:
    return all(have.get(name, 0.0) >= much for name, much in wanted.items())


def _said(shares: Shares) -> str:
    return f"{shares.get('CPU', 0.0):g} CPUs and {shares.get('GPU', 0.0):g} GPUs"


def _nodes() -> dict[str, str]:
    """Address of each living node, with the start of its id, by its id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in alive}
