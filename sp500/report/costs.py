"""Costs of the runs, and of more workers: cells for other tables, sentences, and tables of their own.

Costs are reported if a run was on a cluster or its machine has a rate; a laptop that costs nothing adds no column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sp500 import formatting
from sp500.formatting import NOTHING, fixed, money, percent, seconds, some
from sp500.report.tables import Table, table
from sp500.runs import cost, forecast
from sp500.runs.cost import Cost, RateTable
from sp500.runs.experiments import EXPERIMENTS, TITLES, Experiment, Question
from sp500.runs.record import RunRecord
from sp500.runs.results import Basis, Forecast, ForecastRow
from sp500.runs.usl import VARIES

COUNTED = (
    "A run pays for its nodes, head and submitter, or its machine, in all its attempts. Storage, network and idle "
    "nodes are not in it."
)


@dataclass(frozen=True)
class Costs:
    """Costs of runs under one table of rates; empty if there is no table, or nothing to report."""

    by_run: Mapping[str, Cost] = field(default_factory=dict)
    currency: str = ""
    held: date | None = None
    """Date of the rates."""
    source: str = ""
    unended: tuple[str, ...] = ()
    """Runs that left no record."""
    wasted: float = 0.0
    """Of runs that did not end well."""
    ahead: Mapping[Experiment, Forecast] = field(default_factory=dict)
    """Forecast of each experiment that ran with two numbers of workers or more, by its name."""

    def cells(self, run: str | None, *, windows: bool = False) -> dict[str, str]:
        """Return the cells of a run's row: its cost, and if `windows` that of a million of them."""
        if not self.by_run:
            return {}
        cost_row = self.by_run.get(run or "")
        cells = {f"Cost, {self.currency}": money(cost_row.amount) if cost_row else NOTHING}
        if windows:
            cells[f"{self.currency} per million"] = money(cost_row.per_million if cost_row else None)
        return cells

    @property
    def numbers(self) -> dict[str, object]:
        """Its part of report.json."""
        plain = {
            run: {
                "cost": run_cost.amount,
                "node_seconds": run_cost.node_seconds,
                "per_trial": run_cost.per_trial,
                "per_million": run_cost.per_million,
            }
            for run, run_cost in self.by_run.items()
        }
        costs = {"currency": self.currency or None, "rates_of": str(self.held) if self.held else None, "runs": plain}
        return {"costs": costs, "forecast": dict(self.ahead)}


def of(records: Sequence[RunRecord], unended: Sequence[RunRecord], rates: RateTable | None) -> Costs:
    """Return the costs of ended runs and of those that left no record, and forecasts from them."""
    asked = {name: Question(experiment=name) for name in EXPERIMENTS}
    every = {name: forecast.forecast(records, question, rates) for name, question in asked.items()}
    ahead = {name: run_cost for name, run_cost in every.items() if run_cost["backtest"]}
    latest = {record.name: record for record in (*records, *unended)} if rates else {}
    run_costs = {name: run_cost for name, record in latest.items() if rates and (run_cost := cost.cost(record, rates))}
    if not rates or not any(run_cost.amount or run_cost.rented for run_cost in run_costs.values()):
        return Costs(ahead=ahead)
    wasted = sum(run_cost.amount for name, run_cost in run_costs.items() if latest[name].status != "ok")
    killed = tuple(run_cost.name for run_cost in unended if run_cost.name in run_costs)
    return Costs(run_costs, rates.currency, rates.date, rates.source, killed, wasted, ahead)


def sentences(costs: Costs) -> list[str]:
    """Return what all runs cost together, and how far the forecasts missed what is known."""
    lines = []
    if costs.by_run:
        total = money(sum(item.amount for item in costs.by_run.values()))
        wasted = f", {money(costs.wasted)} of it for runs that did not end well" if costs.wasted else ""
        assumed = f"at rates of {costs.held}, which are assumptions"
        free = "" if any(item.amount for item in costs.by_run.values()) else ", since the table has their machines at 0"
        lines.append(f"{some(len(costs.by_run), 'run')} cost {total} {costs.currency}{wasted}{free}, {assumed}.")
    return lines + [f"{TITLES[name]}: {backtest(item)}" for name, item in costs.ahead.items()]


def parts(costs: Costs) -> tuple[Any, ...]:
    """Return tables of the forecasts and remarks on the rates."""
    shown: list[Any] = []
    for name, ahead in costs.ahead.items():
        shown += [forecast_table(f"Forecast: {TITLES[name].lower()}", ahead), ahead["assumption"]]
    if costs.by_run:
        shown.append(f"Rates of {costs.held}, which are assumptions: {costs.source}. {COUNTED}")
    if costs.unended:
        named = formatting.join(list(costs.unended))
        shown.append(f"Without a record, killed or still running, and counted up to the last file written: {named}.")
    return tuple(part for part in shown if part)


def search_table(costs: Costs, sides: Mapping[str, RunRecord]) -> Table | None:
    """Return a table of what each arm of a search cost, by its name."""
    lines = []
    for name, record in sides.items():
        if run_cost := costs.by_run.get(record.name):
            each = {f"{costs.currency} per finished config": money(run_cost.per_trial)}
            nodes = {"Node-seconds": fixed(run_cost.node_seconds, 0)}
            lines.append({"Arm": name} | costs.cells(record.name) | each | nodes)
    return table("What the search cost", lines, text=("Arm",)) if lines else None


def forecast_table(caption: str, ahead: Forecast) -> Table:
    """Return a table with a row per number of workers."""
    lines = []
    for row in ahead["rows"]:
        line = {"Workers": str(row["workers"]), "Start to end": seconds(row["seconds"])}
        line |= {_range_title(ahead["basis"]): _range(row), "Measured": seconds(row["measured"])}
        line |= {"Speed-up": formatting.ratio(row["speedup"]), "Efficiency": percent(row["efficiency"], 0)}
        paid = ahead["currency"] and not _free(ahead)
        lines.append(line | ({f"Cost, {ahead['currency']}": money(row["cost"])} if paid else {}))
    basis = ahead["basis"]
    size = f", {fixed(basis['samples'], 0)} windows" if basis.get("samples") else ""
    note = " ".join(filter(None, [_law(basis), _free(ahead)]))
    return table(f"{caption}{size}", lines, text=("Workers",), note=note)


def backtest(ahead: Forecast) -> str:
    """Return what the law predicted for the most workers when fitted without them."""
    tested = ahead["backtest"]
    if tested is None:
        return "The forecast could not be tested: that requires runs with two numbers of workers."
    fitted = formatting.join([str(count) for count in tested["fitted_on"]])
    verdict = "within" if tested["within"] else "outside"
    span = f"{seconds(tested['seconds_low'])} to {seconds(tested['seconds_high'])}"
    error = percent(tested["error_percent"] / 100, 0, sign=True)
    return (
        f"fitted on {fitted} {'worker' if fitted == '1' else 'workers'}, the forecast for {tested['predicted']} is "
        f"{seconds(tested['seconds'])}; measured were {seconds(tested['measured'])}, an error of {error}, {verdict} "
        f"its range of {span}."
    )


def text(ahead: Forecast, rates: RateTable | None) -> str:
    """Return a forecast as text for a terminal."""
    basis = ahead["basis"]
    shown = forecast_table("forecast", ahead)
    titles = [column.title for column in shown.columns]
    cells = [titles, *(list(row.cells) for row in shown.rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(titles))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    # If nothing was measured all numbers are an assumption, which is to be read before them.
    before, after = ([], [ahead["assumption"]]) if basis["used"] else ([ahead["assumption"], ""], [])
    lines = [*before, *lines]
    if shown.note:
        lines += ["", shown.note, f"Runs: {', '.join(basis['used'])}."]
    lines += [f"Left out: {left['run']} ({left['why']})." for left in basis["left_out"]]
    lines += filter(None, after)
    tested = backtest(ahead)
    lines.append(f"Tested on what is known: {tested}" if ahead["backtest"] else tested)
    if rates and not _free(ahead):
        lines.append(f"Rates of {rates.date}, assumptions: {rates.source}.")
    return "\n".join(lines)


def _range(row: ForecastRow) -> str:
    return NOTHING if row["seconds"] is None else f"{seconds(row['seconds_low'])} to {seconds(row['seconds_high'])}"


def _range_title(basis: Basis) -> str:
    """Return the title of a range; one that no repeated run supports is named after its assumption."""
    if basis.get("repeats"):
        return "Range, 90% by the law"
    return f"Range if runs vary by {percent(basis.get('varies', VARIES), 0)}"


def _free(ahead: Forecast) -> str:
    """Return why there is no cost to show, if the table has a rate of nothing."""
    if not ahead["currency"] or any(row["cost"] is None or row["cost"] for row in ahead["rows"]):
        return ""
    return f"No cost: the table of rates has {ahead['basis']['node_type']}, the type of these machines, at 0."


def _law(basis: Basis) -> str:
    """Return what the runs determined of the law, and what is assumed in it."""
    if not basis["used"]:
        return ""
    counts = basis["workers"]
    joining = seconds(basis["start_seconds_per_worker"]) if basis["start_seconds_per_worker"] else "no"
    every = {
        "start": f"start {seconds(basis['start_seconds'])}",
        "joining": f"{joining} more to start per further worker",
        "work": f"work of one worker {seconds(basis['work_seconds'])}",
        "contention": f"contention {percent(basis['contention'], 1)}",
        "coherency": f"coherency {percent(basis['coherency'], 2)} of the work per further worker",
    }
    fitted = [text for name, text in every.items() if name not in basis["assumed"]]
    assumed = [every[name] for name in basis["assumed"]]
    workers = f"{formatting.join([str(count) for count in counts])} {'worker' if counts == [1] else 'workers'}"
    runs = f"{some(len(basis['used']), 'run')} with {workers} on {basis['place']}"
    apart = f" Assumed: {formatting.join(assumed)}." if assumed else ""
    if basis["repeats"]:
        repeats = some(basis["repeats"], "repeat")
        apart += f" Range: runs vary by {percent(basis['varies'])}, from {repeats} of runs with the same settings."
    return f"Universal scalability law on {runs}. Fitted: {formatting.join(fitted)}.{apart}"
