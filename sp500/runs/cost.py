"""Costs of jobs and of runs: resources x seconds x a table of rates.

What costs are the nodes that a run kept from others, whether it used them fully or not, since that is what is billed.
The head of a cluster that several runs share at once counts for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from pydantic import Field, model_validator

from sp500.config import Frozen
from sp500.runs.experiments import SEARCHES
from sp500.runs.record import RunRecord

HOUR, GIB = 3600, 2**30
Amount = Annotated[float, Field(ge=0)]
PARTS = ("all",)
"""Arms of runs whose parts are runs of their own, which the parts pay for."""


class Node(Frozen):
    """The resources of one machine or pod."""

    cpus: Amount
    """CPUs."""
    gpus: Amount = 0.0
    """GPUs."""
    gib: Amount
    """Memory in GiB."""


class NodeType(Frozen):
    """Rates of one kind of machine."""

    cpu_hour: Amount
    """Of one CPU for an hour."""
    gpu_hour: Amount = 0.0
    """Of one GPU for an hour."""
    gib_hour: Amount
    """Of one GiB of memory for an hour."""
    spot_discount: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share by which a spot machine is cheaper."""
    node: Node
    """The size of a worker, for runs that did not record it."""


class Rule(Frozen):
    """The rule by which a run's machine is found in the table."""

    alone: str
    """All that ran on one machine."""
    cluster: str
    """Nodes of a cluster, and its head."""
    gpu: str
    """Nodes whose workers trained on a GPU of a name that `gpus` does not have."""
    gpus: dict[str, str] = Field(default_factory=dict)
    """Part of a GPU's name, and the type of its node."""


class RateTable(Frozen):
    """Rates with their date and source: assumptions that a user edits."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    """Three letters, such as USD."""
    date: date
    """The day of the rates."""
    source: str
    """The source of the rates."""
    types: dict[str, NodeType]
    """By name."""
    rule: Rule
    """The rule for the type of a run's machine."""
    beside: tuple[Node, ...] = ()
    """The pods of a job's cluster other than its workers: the head, the pod that submits."""

    @model_validator(mode="after")
    def _names_are_known(self) -> RateTable:
        named = {"alone": self.rule.alone, "cluster": self.rule.cluster, "gpu": self.rule.gpu} | self.rule.gpus
        if missing := [f"{key} is {name!r}" for key, name in named.items() if name not in self.types]:
            raise ValueError(f"rule: {'; '.join(missing)}; expected a name under types: {', '.join(self.types)}")
        return self


class Pods(Node):
    """Alike machines or pods that are held together."""

    count: int = Field(1, ge=0)
    """How many."""
    node_type: str = ""
    """A name of the table's types. Default: that of a cluster's nodes."""
    spot: bool = False
    """Whether they may be taken away at any time, and cost less."""


@dataclass(frozen=True)
class Cost:
    """The cost of a run."""

    amount: float
    """In the table's currency."""
    node_seconds: float
    """Seconds of all its workers together; of a run without workers, its own."""
    rented: bool
    """Whether it ran on a cluster."""
    per_trial: float | None
    """Per config of a search that ended well."""
    per_million: float | None
    """Per million windows trained on."""


def amount(pods: Iterable[Pods], seconds: float, table: RateTable) -> float:
    """Return the cost of pods held for so many seconds, in the table's currency.

    Raises KeyError for a type that the table lacks.
    """
    return seconds / HOUR * sum(_hour(pod, table) for pod in pods)


def cost(record: RunRecord, table: RateTable) -> Cost | None:
    """Return the cost of a run up to its end, however it ended, with all attempts; None for one that only has parts."""
    if record.arm in PARTS:
        return None
    taken = list_pods(record, table)
    seconds = record.seconds.total + record.seconds.earlier
    paid = amount(taken, seconds, table)
    good = record.search["configs"] - record.search["failed"] if record.search else 0
    millions = record.samples / 10**6
    workers = taken[0].count if is_rented(record) and _workers(record) else 1
    return Cost(
        amount=paid,
        node_seconds=workers * seconds,
        rented=is_rented(record),
        per_trial=paid / good if good > 0 else None,
        per_million=paid / millions if millions else None,
    )


def is_rented(record: RunRecord) -> bool:
    """Return whether a run ran on a cluster: Ray on more than one host, or in a pod of Kubernetes.

    Records older than the count of hosts are judged by their nodes, unless those were simulated.
    """
    machine = record.machine
    hosts = machine.cluster.get("hosts", 0 if machine.simulated_nodes else machine.cluster.get("nodes", 0))
    return machine.pod or hosts > 1


def list_pods(record: RunRecord, table: RateTable) -> tuple[Pods, ...]:
    """Return what a run kept from others: its workers' nodes first, then the other pods of its cluster.

    As many nodes as it has workers, at most those that there are; a search has all. A run in one process has its
    machine, and in a pod the pods next to the workers.
    """
    own = worker(record, table)
    return (own.model_copy(update={"count": _workers(record)}), *around(table)) if is_rented(record) else (own,)


def worker(record: RunRecord, table: RateTable) -> Pods:
    """Return the machine of a run, on a cluster a worker's node: as measured, else the mean, else from the table."""
    machine, cluster, gpu = record.machine, record.machine.cluster, _on_gpu(record)
    if not is_rented(record):
        gib = machine.memory_bytes / GIB
        return Pods(cpus=machine.cpus, gpus=float(gpu), gib=gib, node_type=table.rule.alone)
    kind = _gpu_type(cluster, table.rule) if gpu else table.rule.cluster
    if cluster.get("worker_CPU"):
        size = Node(cpus=cluster["worker_CPU"], gpus=cluster["worker_GPU"], gib=cluster["worker_memory"] / GIB)
    elif cluster.get("CPU") and (nodes := cluster.get("nodes")):
        mean = {name: cluster.get(name, 0.0) / nodes for name in ("CPU", "GPU", "memory")}
        size = Node(cpus=mean["CPU"], gpus=mean["GPU"], gib=mean["memory"] / GIB)
    else:
        size = table.types[kind].node
    gpus = size.gpus if gpu else 0.0
    return Pods(cpus=size.cpus, gpus=gpus, gib=size.gib, node_type=kind, spot=bool(cluster.get("spot", 0.0)))


def around(table: RateTable) -> tuple[Pods, ...]:
    """Return the pods of a job's cluster other than its workers."""
    return tuple(Pods(**node.model_dump(), node_type=table.rule.cluster) for node in table.beside)


def _workers(record: RunRecord) -> int:
    cluster = record.machine.cluster
    there = int(cluster.get("worker_nodes", cluster.get("nodes", 0.0)))
    if record.experiment in SEARCHES and there:  # it is known only under Ray
        return there
    return min(record.num_workers, there) if there else record.num_workers


def _on_gpu(record: RunRecord) -> bool:
    """Return whether its workers had GPUs; one that did not end well has no count, and is assumed to have used them."""
    wanted = (record.config.get("train") or {}).get("device", "auto")
    could = record.machine.cluster.get("worker_GPU", 0.0) > 0 and wanted != "cpu"
    return record.device == "cuda" or (record.status != "ok" and could)


def _gpu_type(cluster: dict[str, float], rule: Rule) -> str:
    names = " ".join(key for key in cluster if key.startswith("accelerator_type:"))
    return next((kind for part, kind in rule.gpus.items() if part in names), rule.gpu)


def _hour(pods: Pods, table: RateTable) -> float:
    rates = table.types[pods.node_type or table.rule.cluster]
    each = pods.cpus * rates.cpu_hour + pods.gpus * rates.gpu_hour + pods.gib * rates.gib_hour
    return pods.count * each * (1 - rates.spot_discount if pods.spot else 1)
