"""Checks before anything starts on a cluster: do all nodes see the storage, and can the cluster hold the workers?

Ray finds out late: a folder that only one node has fails at the first checkpoint or loses it silently, and workers that
no node can hold are waited for without end.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sp500.distributed import capacity
from sp500.distributed.capacity import Shares
from sp500.errors import ResourcesError

PROBE_SECONDS = 60
# How often nodes are asked. One that has gone meanwhile does not answer, and another takes its place.
PROBES = 3


def worker_share(num_workers: int, *, gpu: bool, readers: bool = False) -> Shares:
    """Return the resources of one of `num_workers`. Raises ResourcesError, at once, for what the cluster does not have.

    On one machine with fewer cores than workers each takes its part of a core: slower, but a rehearsal that runs. With
    `readers`, half of a core per worker is left to the tasks that read for it. Nodes that the cluster may still get are
    waited for, so call this before the storage is probed on every node.
    """
    allowed = capacity.manifest_limits()
    have = capacity.resources()
    can_have = capacity.largest(have, allowed)
    share = choose_share(have, can_have, num_workers, gpu=gpu, readers=readers)
    if share is None and allowed is not None:
        raise ResourcesError(_refusal(num_workers, have, can_have, gpu=gpu))
    # Without a share and without limits in the manifest: a core each, if the autoscaler can add that.
    each = {"CPU": share or 1.0} | ({"GPU": 1.0} if gpu else {})
    cpus = num_workers * each["CPU"] * (2 if readers else 1)
    capacity.wait_for({"CPU": cpus, "GPU": each.get("GPU", 0.0) * num_workers})
    return each


def _refusal(num_workers: int, have: Shares, can_have: Shares, *, gpu: bool) -> str:
    now, then = capacity.describe(have), capacity.describe(can_have)
    grows = "" if capacity.covers(have, can_have) else f" and can grow to {then}"
    return (
        f"--num-workers {num_workers} needs a {'GPU' if gpu else 'CPU'} for each; the cluster has {now}{grows}. "
        f"Use fewer --num-workers, or {'--train.device cpu' if gpu else 'more nodes (maxReplicas of the RayCluster)'}"
    )


def choose_share(have: Shares, can_have: Shares, num_workers: int, *, gpu: bool, readers: bool) -> float | None:
    """Return a worker's part of a CPU, of the cluster as it is or else as it can be; None if both have too little."""
    for shares in (have, can_have):
        cpus = shares.get("CPU", 0.0) / (2 if readers else 1)
        if (gpu and shares.get("GPU", 0.0) < num_workers) or not cpus:
            continue
        if cpus >= num_workers:
            return 1.0
        if shares["nodes"] == 1 or shares["CPU"] >= num_workers:
            return max(int(100 * cpus / num_workers) / 100, 0.01)
    return None


def use_gpu(device: str, num_workers: int) -> bool:
    """Return whether workers use a GPU: with cuda always, with auto if the cluster can have one for each."""
    return device == "cuda" or (device == "auto" and capacity.most()["GPU"] >= num_workers)


def check_shared_storage(folder: Path) -> None:
    """Check that every node reads what this process writes into the folder, and can write there.

    Raises ResourcesError naming the nodes that do not. A single node shares with itself; several on one machine share a
    path, and pass.
    """
    if len(_nodes()) < 2:
        return
    probe, text = folder.resolve() / f".probe-{uuid.uuid4().hex}", uuid.uuid4().hex
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(text)
    except OSError as error:
        raise ResourcesError(f"{probe.parent}: cannot be written to ({error.strerror})") from error
    try:
        answers = _probe_all(probe, text)
    finally:
        probe.unlink()
    if silent := {address: why for address, why in answers.items() if isinstance(why, str)}:
        lines = [f"  {address}: {why}" for address, why in silent.items()]
        raise ResourcesError("\n".join([f"{len(silent)} of {len(answers)} nodes did not answer a probe:", *lines]))
    if blind := [address for address, sees in answers.items() if not sees]:
        raise ResourcesError(
            f"{folder.resolve()} is not on storage that the whole cluster shares: {', '.join(blind)} of {len(answers)} "
            "nodes cannot read what the driver wrote there, or not write. Give --runs-dir (or SP500_RUNS_DIR) a folder "
            "that every node mounts; cluster/raycluster.yaml has /runs"
        )


def _probe_all(probe: Path, text: str) -> dict[str, bool | str]:
    """Return answers of the nodes by address. If a node gives none, wait for the resources again and ask all."""
    answers = _probe_nodes(_nodes(), probe, text)
    for _ in range(PROBES - 1):
        if not any(isinstance(why, str) for why in answers.values()):
            break
        time.sleep(capacity.POLL_SECONDS)  # until Ray counts a lost node out
        capacity.wait_again()
        answers = _probe_nodes(_nodes(), probe, text)
    return answers


def _probe_nodes(nodes: dict[str, str], probe: Path, text: str) -> dict[str, bool | str]:
    """Return by address whether each node sees the file, or the reason that it did not answer."""
    pending = {
        address: ray.remote(_sees)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), num_cpus=0)
        .remote(str(probe), text)
        for node, address in nodes.items()
    }
    deadline = time.monotonic() + PROBE_SECONDS
    answers: dict[str, bool | str] = {}
    for address, answer in pending.items():
        try:
            answers[address] = bool(ray.get(answer, timeout=max(deadline - time.monotonic(), 0.1)))
        except GetTimeoutError:
            ray.cancel(answer)
            answers[address] = f"nothing within {PROBE_SECONDS} s"
        except RayError as error:
            answers[address] = str(error).splitlines()[0]
    return answers


def _sees(probe: str, text: str) -> bool:
    path = Path(probe)
    try:
        return path.read_text() == text and os.access(path.parent, os.W_OK)
    except OSError:
        return False


def _nodes() -> dict[str, str]:
    """Return the address of each living node, with the start of its id, by its id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in alive}
