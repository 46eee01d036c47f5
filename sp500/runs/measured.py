"""Which runs a forecast is made of: those of one kind with the most numbers of workers, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sp500.runs import cost
from sp500.runs.record import RunRecord


@dataclass(frozen=True)
class Measured:
    """One run as the law sees it."""

    record: RunRecord
    workers: int
    start: float
    """Seconds before training, without writing shards, which the next run does not pay."""
    train: float
    """All other seconds."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What runs of one fit have in common: settings and data, device, kind of machine."""
        record = self.record
        settings = str(record.search["key"]) if record.search else record.fingerprint
        return settings, record.device, place(record)

    @property
    def samples(self) -> int:
        """Windows trained on."""
        return self.record.samples

    @property
    def finished(self) -> datetime:
        """When it ended."""
        return self.record.finished


def chosen(records: Sequence[RunRecord], experiment: str) -> tuple[list[Measured], list[dict[str, Any]]]:
    """The runs of one key with the most numbers of workers, the newest such; and why each other run is left out."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    left_out: list[dict[str, Any]] = []
    for record in records:
        if record.experiment != experiment or record.arm in cost.PARTS or record.arm == "benchmark":
            continue
        found = measured(record)
        if isinstance(found, str):
            left_out.append({"run": record.name, "why": found})
        else:
            groups.setdefault(found.key, []).append(found)
    if not groups:
        return [], left_out
    best = max(groups.values(), key=lambda group: (len(counts(group)), max(one.finished for one in group)))
    others = [one for group in groups.values() if group is not best for one in group]
    left_out += [{"run": one.record.name, "why": _difference(one, best[0])} for one in others]
    return best, left_out


def measured(record: RunRecord) -> Measured | str:
    """A run with workers that ended well at one go, or why it is none.

    Of a search the workers are the cores that its trials ran on side by side.
    """
    search, seconds = record.search, record.seconds
    if record.status != "ok":
        return f"ended as {record.status}"
    if seconds.earlier or (search or {}).get("resumed"):
        return "was interrupted"
    workers = int(search["cores"]) if search and record.arm == "parallel" else record.num_workers
    if not workers:
        return "has no workers (one process)"
    shards = record.data.get("shards") or {}
    train = seconds.search if search else seconds.total - seconds.setup
    start = seconds.total - train - float(shards.get("writing_seconds") or 0.0)
    if train <= 0 or start <= 0:
        return "does not tell its seconds of start and training"
    return Measured(record, workers, start, train)


def place(record: RunRecord) -> str:
    """The kind of machine that a run ran on, in words."""
    if cost.rented(record):
        cpus = record.machine.cluster.get("worker_CPU")
        return f"a cluster's nodes of {cpus:g} CPUs" if cpus else "a cluster"
    cores = f"the {record.machine.cpus} cores of one machine"
    return f"simulated nodes on {cores}" if record.machine.simulated_nodes else cores


def counts(used: Sequence[Measured]) -> list[int]:
    """Numbers of workers that were measured, fewest first."""
    return sorted({one.workers for one in used})


def _difference(one: Measured, best: Measured) -> str:
    names = ("other settings or data", "another device", "another kind of machine")
    return ", ".join(name for name, mine, theirs in zip(names, one.key, best.key, strict=True) if mine != theirs)
