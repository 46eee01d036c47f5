"""What the newest scale experiment found: its rows, what was computed of them, and both as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sp500.report import words
from sp500.report.tables import Cells, Table, no_cells, table
from sp500.report.words import TIMES, fixed, percent, seconds, size
from sp500.runs import scaling
from sp500.runs.record import RunRecord
from sp500.runs.scaling import Row

BLANK: Row = dict.fromkeys(
    (
        "run",
        "windows",
        "samples",
        "seconds",
        "setup_seconds",
        "train_seconds",
        "samples_per_second",
        "warm_samples_per_second",
        "epoch_seconds",
        "memory_limit_bytes",
        "peak_memory_bytes",
        "bytes_on_disk",
    )
) | {"reason": "", "num_workers": 0, "simulated_nodes": 0, "writing_seconds": 0.0}
"""What an older record may not tell."""


@dataclass(frozen=True)
class Scale:
    """One scale experiment; empty lists where none ran."""

    rows: list[Row]
    """One per size, arm and number of workers, as `scaling.row` gives them."""
    break_even: list[Row]
    strong: list[Row]
    weak: list[Row]
    cores: int
    """Of the machine, or of the whole cluster where there is one."""
    nodes: int
    """Machines that took part."""

    @property
    def numbers(self) -> dict[str, Any]:
        """Its part of report.json."""
        laws = {"break_even": self.break_even, "strong_scaling": self.strong, "weak_scaling": self.weak}
        return {"scale": self.rows, **laws}


def newest(records: Sequence[RunRecord]) -> Scale:
    """The newest scale experiment among records, oldest first."""
    found = [record for record in records if record.scale is not None]
    if not found:
        return Scale([], [], [], [], 0, 0)
    last = found[-1]
    rows = complete(last.scale or [])
    runs = {row["run"] for row in rows} | {last.name}
    machines = [record.machine for record in records if record.name in runs]
    # Simulated nodes are processes of one machine.
    clusters = [{} if machine.simulated_nodes else machine.cluster for machine in machines]
    cores = [*(machine.cpus for machine in machines), *(int(cluster.get("CPU", 0)) for cluster in clusters)]
    nodes = max(int(cluster.get("nodes", 1)) for cluster in clusters)
    laws = scaling.break_even(rows), scaling.strong(rows), scaling.weak(rows)
    return Scale(rows, *laws, max(cores) if nodes > 1 else last.machine.cpus, nodes)


def complete(rows: Sequence[Row]) -> list[Row]:
    """Rows of a record of any age, with every key."""
    return [BLANK | row for row in rows]


def by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows per arm and number of workers, under the arm's label, smallest size first."""
    labels = dict.fromkeys(label(row) for row in sorted(rows, key=lambda row: int(row["num_workers"])))
    sized = sorted(rows, key=lambda row: int(row["multiplier"]))
    return {name: [row for row in sized if label(row) == name] for name in labels}


def label(row: Row) -> str:
    """An arm by its name; Ray by its workers."""
    workers = row["num_workers"]
    return words.some(workers, "Ray worker") if workers else words.arm(row["arm"])


def at(multiplier: float) -> str:
    """A dataset size as the report writes it: 'x10', with the sign for times."""
    return f"{TIMES}{multiplier:,g}"


def rate(row: Row) -> float | None:
    """Windows per second: the warm rate, or that over all seconds where a run has no warm one."""
    value: float | None = row["warm_samples_per_second"] or row["samples_per_second"]
    return value


def share(row: Row) -> float | None:
    """Peak memory as a share of the budget."""
    peak, limit = row["peak_memory_bytes"], row["memory_limit_bytes"]
    return peak / limit if peak and limit else None


def tables(found: Scale, more: Cells = no_cells) -> list[Table]:
    """What each arm did with each size, and what more workers gave; `more` gives further columns by run."""
    return [_arms(found.rows, more), *([_scaling(found)] if found.strong or found.weak else [])]


def _arms(rows: Sequence[Row], more: Cells) -> Table:
    windows = {row["multiplier"]: f" ({fixed(row['windows'], 0)})" for row in rows if row["windows"]}
    lines = [
        {
            "Data (windows)": at(row["multiplier"]) + windows.get(row["multiplier"], ""),
            "Arm": label(row),
            "Status": words.ended(row["status"]),
            "Windows/s": fixed(rate(row), 0),
            "One epoch": seconds(row["epoch_seconds"]),
            "Start to end": seconds(row["seconds"]),
            "of which setup": seconds(row["setup_seconds"]),
            "of that, shards": seconds(row["writing_seconds"] or None),
            "Peak memory (of budget)": _peak(row),
            "On disk": size(row["bytes_on_disk"]),
            **more(row["run"], windows=True),
        }
        for row in rows
    ]
    limits = [size(row["memory_limit_bytes"]) for row in rows if row["memory_limit_bytes"]]
    budget = f"; budget {limits[0]} per node" if limits else ""
    note = (
        "Windows/s in training steps, without the wait for the first batch. One epoch: a whole pass at that rate. "
        "Shards: the seconds that writing them took; a run that finds them written has none. Peak memory: "
        "proportional set size of the largest training process; of Ray on simulated nodes, of the largest node with "
        "its workers, agents and object store."
    )
    return table(
        f"Every arm at every size{budget}",
        lines,
        text=("Data (windows)", "Arm", "Status"),
        kinds=["" if row["status"] == "ok" else "bad" for row in rows],
        note=note,
    )


def _peak(row: Row) -> str:
    of_budget = share(row)
    return size(row["peak_memory_bytes"]) + ("" if of_budget is None else f" ({percent(of_budget, 0)})")


def _scaling(found: Scale) -> Table:
    sized = [("strong", at(row["multiplier"]), row) for row in found.strong]
    sized += [("weak", f"{at(row['multiplier_per_worker'])} per worker", row) for row in found.weak]
    lines = [
        {
            "Scaling": kind,
            "Data": data,
            "Workers": str(row["workers"]),
            "Windows/s": fixed(row["samples_per_second"], 0),
            "Speed-up": words.ratio(row["speedup"]),
            "Efficiency": percent(row["efficiency"], 0),
        }
        for kind, data, row in sized
    ]
    note = (
        "Strong: the same set on more workers. Weak: a set that grows with the workers. Speed-up: windows/s over those "
        "of the fewest workers. Efficiency: the speed-up over what as many times the workers would ideally give."
    )
    if any(row["simulated_nodes"] for row in found.rows):
        note += f" Nodes were simulated: all workers shared the {words.some(found.cores, 'core')} of one machine."
    return table("More workers of Ray", lines, text=("Scaling", "Data"), note=note)
