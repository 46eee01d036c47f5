"""Scale experiments side by side: rows of the same settings from the user's machine and from the cluster.

An experiment on a laptop and one on a cluster are two runs. Rows whose settings are equal, the size apart, belong
together, whatever experiment they come from: the laptop's streaming arm next to the cluster's Ray arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp500 import formatting
from sp500.formatting import METRIC, NOTHING, TIMES, approx, fixed, percent, seconds, size
from sp500.report.tables import Cells, Table, no_cells, table
from sp500.runs import scaling
from sp500.runs.compare import relative_gap
from sp500.runs.record import RunRecord
from sp500.runs.results import BreakEven, ScaleRow, Speedup, StrongScaling, WeakScaling
from sp500.runs.scaling import ARMS, PLACES

PLACE = {"machine": "one machine", "cluster": "cluster"}


class Row(ScaleRow):
    """One row per size, place, arm and number of workers."""

    label: str
    """The arm's name in the report."""
    rates: list[float]
    """Warm windows per second of each epoch of all its runs."""


@dataclass(frozen=True)
class Scale:
    """Rows of scale experiments with the same settings; empty lists if none ran."""

    rows: list[Row]
    break_even: list[BreakEven]
    strong: list[StrongScaling]
    weak: list[WeakScaling]

    @property
    def numbers(self) -> dict[str, object]:
        """Its part of report.json."""
        laws = {"break_even": self.break_even, "strong_scaling": self.strong, "weak_scaling": self.weak}
        return {"scale": self.rows, **laws}

    @property
    def cores(self) -> int:
        """Cores of the user's machine; 0 if nothing ran on it."""
        return max((row["cores"] for row in self.rows if row["place"] == "machine"), default=0)


def collect(records: Sequence[RunRecord]) -> Scale:
    """Return the rows of the newest scale experiment and of older ones with its settings; records come oldest first.

    Of several runs of the same arm, size, place and workers the newest makes the row. Runs on other hardware than the
    newest of a place are left out.
    """
    experiments = [record.scale for record in records if record.scale]
    if not experiments:
        return Scale([], [], [], [])
    settings = {row["settings"] for row in experiments[-1]}
    rows = [row for experiment in experiments for row in experiment if row["settings"] in settings]
    newest = {_kind(row): row["hardware"] for row in rows if row["status"] == "ok"}
    runs: dict[tuple[int, int, int, int], list[ScaleRow]] = {}
    for row in rows:
        if row["status"] != "ok" or row["hardware"] == newest[_kind(row)]:
            order = row["multiplier"], PLACES.index(row["place"]), ARMS.index(row["arm"]), row["num_workers"]
            runs.setdefault(order, []).append(row)
    several = len({row["place"] for row in rows}) > 1
    merged = [_merge(repeats, several=several) for _, repeats in sorted(runs.items())]
    return Scale(merged, scaling.break_even(merged), scaling.strong(merged), scaling.weak(merged))


def _kind(row: ScaleRow) -> tuple[str, bool]:
    """Return the group of rows with comparable hardware: a cluster's nodes are known only to runs of Ray."""
    return row["place"], row["num_workers"] > 0


def _merge(repeats: Sequence[ScaleRow], *, several: bool) -> Row:
    newest = repeats[-1]
    rates = [rate for row in repeats if row["status"] == "ok" for rate in row["epoch_rates"]]
    workers = newest["num_workers"]
    name = formatting.some(workers, "Ray worker") if workers else formatting.arm(newest["arm"])
    return {**newest, "label": f"{name}, {PLACE[newest['place']]}" if several else name, "rates": rates}


def by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows per arm, place and number of workers, under their label, smallest size first."""
    labels = dict.fromkeys(row["label"] for row in sorted(rows, key=lambda row: row["num_workers"]))
    sized = sorted(rows, key=lambda row: row["multiplier"])
    return {name: [row for row in sized if row["label"] == name] for name in labels}


def at(multiplier: float) -> str:
    """Return a dataset size as the report writes it: 'x10', with the sign for times."""
    return f"{TIMES}{multiplier:,g}"


def rate(row: Row) -> float | None:
    """Return windows per second: the warm rate, or that over all seconds if a run has no warm one."""
    return row["warm_samples_per_second"] or row["samples_per_second"]


def share(row: Row) -> float | None:
    """Return peak memory as a share of the budget."""
    peak, limit = row["peak_memory_bytes"], row["memory_limit_bytes"]
    return peak / limit if peak else None


def needed_bytes(row: Row) -> int | None:
    """Return the bytes that a run out of memory would have needed, if its reason has them."""
    if row["status"] != "out_of_memory":
        return None
    # As `sp500.data.windows.memory_error` writes it: what the windows need, and what the process has.
    return sum(formatting.find_sizes(row["reason"].partition(" need ")[2])) or None


def compare_errors(rows: Sequence[Row]) -> dict[int, float]:
    """Return the relative gap of the arms' test errors by size.

    Models that kept the naive forecast are left out, since they are the same by construction.
    """
    errors: dict[int, list[float]] = {}
    for row in rows:
        if row["status"] == "ok" and row["test_error"] and row["best_epoch"]:
            errors.setdefault(row["multiplier"], []).append(row["test_error"])
    return {size: relative_gap(min(alike), max(alike)) for size, alike in errors.items() if len(alike) > 1}


def tables(scale: Scale, more: Cells = no_cells) -> list[Table]:
    """Return what each arm did with each size, and what more workers gave; `more` gives further columns by run."""
    shown = [_arms(scale.rows, more)]
    shown += [_break_even(scale)] if scale.break_even else []
    return [*shown, *([_scaling(scale)] if scale.strong or scale.weak else [])]


def _arms(rows: Sequence[Row], more: Cells) -> Table:
    error = METRIC.get(rows[0]["metric"], "test error") if rows else "test error"
    windows = {row["multiplier"]: f" ({fixed(row['windows'], 0)})" for row in rows if row["windows"]}
    lines = [
        {
            "Data (windows)": at(row["multiplier"]) + windows.get(row["multiplier"], ""),
            "Arm": row["label"],
            "Status": formatting.outcome(row["status"]),
            "Windows/s": fixed(rate(row), 0),
            "One epoch": seconds(row["epoch_seconds"]),
            "Start to end": seconds(row["seconds"]),
            "of which setup": seconds(row["setup_seconds"]),
            "of that, shards": seconds(row["writing_seconds"] or None),
            "Peak memory (of budget)": _peak(row),
            "On disk": size(row["bytes_on_disk"]),
            f"{error[0].upper()}{error[1:]}": NOTHING if row["test_error"] is None else f"{row['test_error']:.4g}",
            **more(row["run"], windows=True),
        }
        for row in rows
    ]
    budget = formatting.join(sorted({size(row["memory_limit_bytes"]) for row in rows}))
    return table(
        f"Every arm at every size; budget {budget} per node",
        lines,
        text=("Data (windows)", "Arm", "Status"),
        kinds=["" if row["status"] == "ok" else "bad" for row in rows],
        note=_note(rows),
    )


def _note(rows: Sequence[Row]) -> str:
    """Return what a reader of the table of arms has to know."""
    note = (
        "Windows/s: in training steps, after the first batch. One epoch: a whole pass at that rate. Shards: seconds of "
        "writing them. Peak memory: of the largest process, or simulated node with all of Ray on it. Each row is the "
        "newest run of its kind."
    )
    if any(row.get("memory_watched") for row in rows):
        note += " On macOS the budget is watched, not enforced: a run may pass it for a moment."
    if any(row["multiplier"] > 1 for row in rows):
        note += f" Sizes above {at(1)} add noisy copies: more work, no new information."
    return note


def _peak(row: Row) -> str:
    of_budget = share(row)
    return size(row["peak_memory_bytes"]) + ("" if of_budget is None else f" ({percent(of_budget, 0)})")


def _break_even(scale: Scale) -> Table:
    alone = scale.break_even[0]["alone"]
    laws = [("one process", alone, NOTHING)]
    for crossing in scale.break_even:
        windows = NOTHING if crossing["windows"] is None else approx(crossing["windows"])
        laws.append((f"{crossing['workers']} on Ray", crossing["ray"], windows))
    lines = [
        {
            "Workers": workers,
            "Where": PLACE[law["place"]],
            "Fixed": seconds(law["fixed_seconds"]),
            "Windows/s": approx(law["samples_per_second"]),
            "Misses by": percent(law["largest_miss"], 0),
            "Sooner from": windows,
        }
        for workers, law, windows in laws
    ]
    trained = max(row["samples"] for row in scale.rows)
    note = (
        f"Estimated by seconds = fixed + windows {TIMES} epochs / rate, with the rate at the largest size and the "
        "median fixed seconds. Sooner from: windows trained from which Ray needs less time than one process "
        f"({formatting.arm(alone['arm'])}); above {approx(trained)} it is extrapolated. Misses by: the largest miss "
        "among these runs."
    )
    return table("From how many windows Ray is sooner", lines, text=("Workers", "Where"), note=note)


def _scaling(scale: Scale) -> Table:
    sized: list[tuple[str, str, Speedup]] = [("strong", at(row["multiplier"]), row) for row in scale.strong]
    sized += [("weak", f"{at(weak['multiplier_per_worker'])} per worker", weak) for weak in scale.weak]
    lines = [
        {
            "Scaling": kind,
            "Where": PLACE[row["place"]],
            "Data": data,
            "Workers": str(row["workers"]),
            "Windows/s": fixed(row["samples_per_second"], 0),
            "Speed-up": formatting.ratio(row["speedup"]),
            "Efficiency": percent(row["efficiency"], 0),
        }
        for kind, data, row in sized
    ]
    note = (
        "Strong: the same set on more workers. Weak: a set that grows with them. Speed-up: windows/s over those of the "
        "fewest workers. Efficiency: as a share of the ideal."
    )
    if any(row["place"] == "machine" for row in (*scale.strong, *scale.weak)):
        note += f" On one machine all workers shared its {formatting.some(scale.cores, 'core')}."
    return table("More workers of Ray", lines, text=("Scaling", "Where", "Data"), note=note)
