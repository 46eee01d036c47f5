"""What did the cluster buy? One sentence with the numbers of the runs, and one on what the cluster was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp500.formatting import join, size, some
from sp500.report.screen.answer import Answer, Facts, name_size
from sp500.report.screen.room import find_largest_alone, list_sizes_only_on_ray
from sp500.report.screen.timing import Timing, describe_busy
from sp500.runs import cost
from sp500.runs.record import RunRecord


@dataclass(frozen=True)
class Screen:
    """All of the first screen."""

    headline: str
    note: str
    """What the cluster was, and what weakens the headline."""
    answers: tuple[Answer, ...]
    unanswered: tuple[tuple[str, str], ...]
    """Question and command."""


def write_headline(facts: Facts, timings: Sequence[Timing]) -> str:
    """Return what the cluster bought: room, time, or nothing, with its numbers."""
    if not facts.runs.records:
        return "No run has ended yet."
    if not list_cluster_runs(facts.runs.records):
        return "No run used a cluster, so what it would buy is not known yet."
    both = [timing for timing in timings if timing.times is not None]
    gains, losses = [], []
    if sizes := list_sizes_only_on_ray(facts.scale):
        budget = size(facts.scale.rows[0]["memory_limit_bytes"])
        named = join([name_size(multiplier) for multiplier in sizes])
        gains.append(f"room for {named} (too large for one process in {budget})")
    faster = [timing.clause() for timing in both if timing.verdict == "faster"]
    gains += [f"time: {join(faster)}"] if faster else []
    losses += [timing.clause() for timing in both if timing.verdict in ("slower", "about as fast")]
    if not gains and not losses:
        why = "the machine was busy" if both else "no task ran both with and without it"
        return f"What the cluster bought is not known: {why}."
    if not sizes and find_largest_alone(facts.scale):
        losses.append("the largest data also fit one process")
    if gains:
        return f"The cluster bought {join(gains)}{f', but {join(losses)}' if losses else ''}."
    return f"The cluster bought nothing here: {join(losses)}."


def write_note(facts: Facts, timings: Sequence[Timing]) -> str:
    """Return what the cluster was, and whether the seconds can be relied on."""
    rays = list_cluster_runs(facts.runs.records)
    if not rays:
        return ""
    busy = describe_busy([timing for timing in timings if timing.times is not None])
    if rented := [record for record in rays if cost.is_rented(record)]:
        nodes = max(int(record.machine.cluster.get("nodes", 0)) for record in rented)
        return f"Cluster: Ray on {some(nodes, 'node')}. {busy}" if nodes else f"Cluster: Ray on Kubernetes. {busy}"
    nodes, cores = max(record.machine.simulated_nodes for record in rays), some(rays[-1].machine.cpus, "core")
    what = f"{some(nodes, 'simulated node')} of Ray" if nodes else "Ray"
    return (
        f"Cluster here: {what} on the {cores} of one machine, which shows what distributing costs, not what more "
        f"machines would gain. {busy}".rstrip()
    )


def list_cluster_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that used Ray."""
    return [record for record in records if record.num_workers or record.arm == "ray"]
