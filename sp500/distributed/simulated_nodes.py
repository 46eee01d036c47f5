"""Several simulated nodes on one machine: a raylet each, with a node's share of CPUs and memory.

It shows that each node keeps within its memory, that data crosses between nodes, and that a run survives a lost node.
It cannot show the effect of more cores or of a network.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import ray
from ray._private import worker
from ray._private.node import Node
from ray.cluster_utils import Cluster

from sp500.distributed import capacity
from sp500.distributed.session import (
    ENVIRONMENT,
    LOCAL_ENVIRONMENT,
    Raylets,
    build_job_config,
    keep_signal_handlers,
    own_nodes,
    private_session,
    set_defaults,
)
from sp500.machine.cores import usable_cores

LOOPBACK = "127.0.0.1"
# Of a node's memory, the part that is Ray's object store; the rest is for the processes on it.
STORE_SHARE = 0.25
STORE_LEAST = 80 * 2**20


@contextmanager
def simulate(count: int, memory_bytes: int | None = None, store_bytes: int | None = None) -> Iterator[Raylets]:
    """Simulate `count` worker nodes and a head without CPUs, for the block; yields the raylets' process numbers.

    `memory_bytes` is a node's budget, of which `store_bytes` (default: a quarter) are its object store.
    """
    set_defaults(ENVIRONMENT | LOCAL_ENVIRONMENT)
    cpus = max(usable_cores() // count, 1)
    share: dict[str, int] = {}
    if memory_bytes is not None:
        store = store_bytes or max(int(memory_bytes * STORE_SHARE), STORE_LEAST)
        share = {"object_store_memory": store, "memory": memory_bytes - store}
    common: dict[str, object] = {"include_dashboard": False, "node_ip_address": LOOPBACK}
    # The kernel ends a node with the thread that started it, so these stay for the block.
    threads = ThreadPoolExecutor(count, thread_name_prefix="node")
    with capacity.declare_workers(count, cpus), private_session(), own_nodes(), _at_once(), threads:
        head = {"num_cpus": 0, "object_store_memory": STORE_LEAST}
        cluster = Cluster(initialize_head=True, head_node_args=common | head)
        try:
            add = partial(cluster.add_node, wait=False, num_cpus=cpus, **common, **share)
            nodes = [future.result() for future in [threads.submit(add) for _ in range(count)]]
            # Otherwise ray.init replaces 127.0.0.1 by the machine's address, where these nodes do not listen.
            worker._global_node = cluster.head_node
            with keep_signal_handlers():
                ray.init(
                    address=cluster.address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address=LOOPBACK,
                    job_config=build_job_config(),
                )
            cluster.wait_for_nodes()
            yield tuple(node.all_processes["raylet"][0].process.pid for node in nodes)
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextmanager
def _at_once() -> Iterator[None]:
    """Let several threads start nodes in the block."""
    numbers = itertools.count(1)

    def name(self: Node, suffix: str = "", prefix: str = "", directory_name: str | None = None) -> str:
        """Return a path that no other call returns. Ray's own looks for a name that no file has yet."""
        return str(Path(directory_name or self.temp_dir, f"{prefix}.{next(numbers)}{suffix}"))

    # Ray's handler of SIGTERM would replace ours, and only the main thread may set one.
    with mock.patch.object(Node, "_register_shutdown_hooks"), mock.patch.object(Node, "_make_inc_temp", name):
        yield
