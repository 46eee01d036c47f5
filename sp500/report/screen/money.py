"""What does it cost? What the runs cost, and what the fastest ways with and without Ray would cost on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from sp500.formatting import amount, join
from sp500.report.plot_style import COLORS, SMALL, Bar, draw_bars
from sp500.report.screen.answer import COSTS, Answer, Facts
from sp500.report.screen.timing import Side, Timing
from sp500.runs import cost
from sp500.runs.cost import RateTable


def answer(facts: Facts, timings: Sequence[Timing]) -> Answer | None:
    """Return the sum of all runs at the table's rates, and the price of one task on rented nodes."""
    rates = facts.runs.rates
    if rates is None or not facts.runs.records:
        return None
    costs = [cost.cost(record, rates) for record in (*facts.runs.records, *facts.runs.unended)]
    total = sum(paid.amount for paid in costs if paid)
    assumed = f"at assumed rates of {rates.date}"
    caption = f"All runs together, {assumed}." if total else "Nothing was rented."
    bars, clauses = [], []
    for side in _price(timings):
        price = price_on_cluster(facts, side.run, rates)
        if price is not None:
            text = amount(price, rates.currency)
            clauses.append(f"{text} {'on Ray' if side.arm == 'ray' else side.label}")
            bars.append(Bar(side.label, price, text, COLORS.get(side.arm, "")))
    if clauses:
        task = next(timing.task for timing in timings if timing.times is not None)
        rented = "On rented nodes" if total else f"On rented nodes, {assumed}"
        caption += f" {rented}, in the same seconds, {task} would cost {join(clauses)}."
    chart = draw_bars("costs", bars, f"{caption} Bars: on rented nodes.", width=SMALL) if len(bars) > 1 else None
    return Answer(COSTS, amount(total, rates.currency), caption, "cost", chart)


def price_on_cluster(facts: Facts, run: str, rates: RateTable) -> float | None:
    """Return the price of a run's seconds on the nodes of a cluster: one for a process, one per worker for Ray."""
    record = next((record for record in facts.runs.records if record.name == run), None)
    if record is None:
        return None
    seconds = record.seconds.total + record.seconds.earlier
    if cost.is_rented(record):
        return cost.amount(cost.list_pods(record, rates), seconds, rates)
    kind = rates.rule.cluster
    on_ray = record.num_workers or record.arm == "ray"
    nodes = max(record.num_workers, record.machine.simulated_nodes, 1)
    own = cost.Pods(**rates.types[kind].node.model_dump(), node_type=kind, count=nodes)
    return cost.amount((own, *(cost.around(rates) if on_ray else ())), seconds, rates)


def _price(timings: Sequence[Timing]) -> list[Side]:
    """Return the fastest way on Ray and without it, of the first task that has both."""
    timing = next((timing for timing in timings if timing.times is not None), None)
    return [side for side in (timing.alone, timing.ray) if side] if timing else []
