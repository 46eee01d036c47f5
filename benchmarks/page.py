"""docs/benchmarks.md from the kept results, and the same tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from sp500.formatting import some

TITLES = {"search": "Searches", "start": "Starts", "train": "Training with two workers", "serve": "Serving"}
ABOUT = {
    "search": """The 108 MLPs of `tune.py --space grid108` on the bundled index, batch 256, from the start to the exit
of a process. Losses and epochs are means over the trials. The peers read windows that are made and scaled
already. Ours reads prices, keeps a ledger, trains the best config once more and judges it.""",
    "start": """`train.py --model.kind linear`, and a script of pandas and PyTorch that does the same from a file of
closes to a test error. Imports: their share of the seconds, in runs of their own. The set-up is what passes
before the first trial.""",
    "train": """An MLP in two processes without early stopping, from the start to the exit. Ours keeps a checkpoint
per epoch; the peers keep none.""",
    "serve": """One window of 30 days and 6 columns per request, the same weights, answers compared before the load.
One worker each where it does not say otherwise. Clients and server share the machine.""",
}
EXTRA = {
    "import_share": "Imports",
    "setup": "Set-up, s",
    "epochs": "Epochs",
    "loss": "Loss",
    "train_loss": "Training loss",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "cpu_ms": "CPU, ms",
    "memory_mib": "MiB",
    "ready_seconds": "Ready, s",
}
"""Further figures that a table shows, as medians."""
HEADER = """# Benchmarks

Written by `python benchmarks/run.py page` from the results kept next to it. Programs ran in turns within one
run. *Ours is* says how many times as fast ours is, turn by turn: the median, and the lowest and highest of all turns.
Peers are written as their documentation shows ([benchmarks/peers](../benchmarks/peers/)).
"""


def write(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    order = list(TITLES)
    return "\n".join([HEADER, *(section(result) for result in sorted(results, key=lambda r: order.index(r["part"])))])


def section(result: Mapping[str, Any]) -> str:
    """Return one part: what ran, where and when, and its tables."""
    machine, versions = result["machine"], ", ".join(f"{name} {text}" for name, text in result["versions"].items())
    where = f"{machine['cpus']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}"
    loads = "load of the machine {:.1f} before and {:.1f} after".format(*result["load"])
    quick = "**Not a measurement: a trial run with `--quick`.**\n\n" if result["quick"] else ""
    partial = (
        f"Measured: {', '.join(result['only'])}. The other programs of this part were left out.\n\n"
        if result["only"]
        else ""
    )
    when = f"{result['date']}, {some(result['turns'], 'turn')}, {loads}. {where}. {versions}."
    tables = "\n".join(_table(table) for table in result["tables"])
    return f"## {TITLES[result['part']]}\n\n{quick}{partial}{ABOUT[result['part']]}\n\n{when}\n\n{tables}"


def _table(table: Mapping[str, Any]) -> str:
    rows = table["rows"]
    extra = [
        name for name in EXTRA if name != table["figure"] and any(name in turn for row in rows for turn in row["turns"])
    ]
    unit = "Requests/s" if table["figure"] == "per_second" else "Seconds"
    head = [table["name"][0].upper() + table["name"][1:], unit, "Ours is", *(EXTRA[name] for name in extra), "Note"]
    lines = [head, ["---", *["---:"] * (len(head) - 2), "---"], *(_line(row, table, extra) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _line(row: Mapping[str, Any], table: Mapping[str, Any], extra: list[str]) -> list[str]:
    name = f"**{row['name']}**" if row["ours"] else row["name"]
    times = "" if row["name"] == table["reference"] else _spread(row["times"], "{:.2f}")
    differs = f"differs in {', '.join(row['unequal'])}" if row["unequal"] else ""
    note = "; ".join(filter(None, (row["another"], differs, row["reason"])))
    others = [_median(name, [turn[name] for turn in row["turns"] if name in turn]) for name in extra]
    return [name, _spread(row["value"], "{:.3g}"), times, *others, note]


def _median(name: str, values: list[float]) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    return f"{middle:.0%}" if name == "import_share" else f"{middle:.4g}"


def _spread(values: Mapping[str, float] | None, form: str) -> str:
    if values is None:
        return ""
    middle, low, high = (form.format(values[name]) for name in ("median", "low", "high"))
    return f"{middle} ({low} to {high})"
