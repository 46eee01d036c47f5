"""The Ray cluster that a script runs on: the one it finds itself in, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import ray

from sp500.errors import ResourcesError

T = TypeVar("T")

# Set before Ray starts its processes. Ray's own default for OMP_NUM_THREADS counts a task's CPUs, and a fraction of a
# CPU would mean none; torch's threads are set by the loop.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
# One machine of our own is not preempted by a cloud, and its controller may ask twice a second if workers are done.
LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # A node of one CPU keeps one idle process; readers would be started anew, seconds each, at every pass.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
    # Actors start processes of their own: those that Ray starts ahead for tasks cost 0.6 s of a core each.
    "RAY_prestart_worker_first_driver": "0",
}


@contextmanager
def connected() -> Iterator[None]:
    """Ray for the length of the block: the cluster of RAY_ADDRESS or of an earlier call, else one on this machine."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    own = address is None
    for key, value in (ENVIRONMENT | LOCAL_ENVIRONMENT if own else ENVIRONMENT).items():
        os.environ.setdefault(key, value)
    # "local": not the cluster that someone else may run on this machine.
    local = {"include_dashboard": False, "num_cpus": os.cpu_count()} if own else {}
    with kept_signals():
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def kept_signals() -> Iterator[None]:
    """Put back, after the block, the signal handlers that Ray replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def beside(function: Callable[[], T]) -> T:
    """`function()` in a thread, while this one stays open to signals.

    In the main thread, Ray Train and Tune handle SIGINT in ways of their own that end without a word or a record.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ray") as pool:
        future = pool.submit(function)
        try:
            return future.result()
        except KeyboardInterrupt:
            ray.shutdown()  # ends what the thread waits for
            raise


def resources() -> dict[str, float]:
    """What the cluster has: CPU, GPU, memory and object_store_memory in bytes, nodes."""
    found = ray.cluster_resources()
    kept = {name: found[name] for name in ("CPU", "GPU", "memory", "object_store_memory") if name in found}
    return {**kept, "nodes": float(len([node for node in ray.nodes() if node["Alive"]]))}


def worker_share(num_workers: int, *, gpu: bool, readers: bool = False) -> dict[str, float]:
    """Resources of one of `num_workers`. Raises ResourcesError, at once, for what the cluster cannot give.

    On one machine with fewer cores than workers each takes its part of a core: slower, but a rehearsal that runs. With
    `readers`, half of a core per worker is left to the tasks that read for it.
    """
    have = resources()
    cpus = have.get("CPU", 0.0) / (2 if readers else 1)
    if gpu and have.get("GPU", 0.0) < num_workers:
        raise ResourcesError(
            f"{num_workers} workers with a GPU each were asked for; the cluster has {have.get('GPU', 0):g} GPUs and "
            f"{cpus:g} CPUs: fewer --num-workers, or --train.device cpu"
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
    return {"CPU": share, "GPU": 1.0} if gpu else {"CPU": share}


def use_gpu(device: str, num_workers: int) -> bool:
    """Whether workers take a GPU: where asked for, and with auto where the cluster has one for each."""
    return device == "cuda" or (device == "auto" and resources().get("GPU", 0.0) >= num_workers)
