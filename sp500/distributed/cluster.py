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
from ray._private import auto_init_hook

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
    # A thread of Tune's that calls Ray once more after Ctrl-C has ended it would start a whole cluster anew. (The
    # public switch, RAY_ENABLE_AUTO_CONNECT, is read when Ray is imported.)
    auto_init_hook.enable_auto_connect = False
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
