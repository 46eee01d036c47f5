"""Several nodes on one machine: a raylet each, with a node's share of CPUs and memory. A simulation, and called so.

What it shows: that each node keeps within its memory, that data crosses between nodes, that a lost node is survived.
What it cannot show: more cores, and a network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sp500.distributed import capacity
from sp500.distributed.cluster import NODE, attach, private_cluster

# Of a node's memory, the part that is Ray's object store; the rest is for the processes on it.
STORE_SHARE = 0.25
STORE_LEAST = 80 * 2**20


@dataclass(frozen=True)
class Nodes:
    """Running worker nodes, by the process number of their raylets."""

    raylets: tuple[int, ...]
    cpus: float


@contextmanager
def simulated(count: int, memory_bytes: int | None = None, store_bytes: int | None = None) -> Iterator[Nodes]:
    """`count` worker nodes and a head without CPUs, for the length of the block.

    `memory_bytes` is a node's budget, of which `store_bytes` (default: a quarter) are its object store.
    """
    cpus = max((os.cpu_count() or 1) // count, 1)
    share: dict[str, int] = {}
    if memory_bytes is not None:
        store = store_bytes or max(int(memory_bytes * STORE_SHARE), STORE_LEAST)
        share = {"object_store_memory": store, "memory": memory_bytes - store}
    head = {"num_cpus": 0, "object_store_memory": STORE_LEAST}
    with capacity.fixed(count, cpus), private_cluster(**head) as cluster:
        nodes = [cluster.add_node(num_cpus=cpus, **NODE, **share) for _ in range(count)]
        attach(cluster)
        cluster.wait_for_nodes()
        yield Nodes(tuple(node.all_processes["raylet"][0].process.pid for node in nodes), cpus)
