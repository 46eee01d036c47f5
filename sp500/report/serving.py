"""The newest benchmark of serving: what replicas on Ray bought next to one process, and what a request costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sp500.formatting import NOTHING, fixed, join, money, size
from sp500.report.section import Runs, Section
from sp500.report.tables import Table, table
from sp500.runs.cost import GIB, HOUR, RateTable
from sp500.runs.record import RunRecord
from sp500.runs.results import ServeRow

PLAIN = "plain"
COUNTED = (
    "Servers and clients shared the machine, so requests a second are fewer than on one of their own; CPU per request "
    "does not depend on that. A price is that of the CPU time and memory of a request at that load, at the rates of a "
    "cluster's nodes, without idle time."
)


def newest(records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the newest benchmark among records, oldest first."""
    return next((record for record in reversed(records) if record.serving), None)


def price_per_thousand(row: ServeRow, rates: RateTable) -> float | None:
    """Return the price of 1,000 requests, in the table's currency; None if none was answered."""
    node = rates.types[rates.rule.cluster]
    if not row["per_second"]:
        return None
    cpu = row["cpu_ms_per_request"] / 1e3 * node.cpu_hour
    memory = row["memory_bytes"] / GIB / row["per_second"] * node.gib_hour
    return 1e3 * (cpu + memory) / HOUR


class ServingSection(Section):
    """The newest benchmark of the server."""

    name = "serving"

    def collect(self, runs: Runs) -> RunRecord | None:
        """Return the newest benchmark."""
        return newest(runs.records)

    def sentences(self, found: RunRecord | None, runs: Runs) -> list[str]:
        """Return what replicas bought, and from what load on; nothing without a benchmark."""
        return sentences(found)

    def parts(self, found: RunRecord | None, runs: Runs) -> tuple[Any, ...]:
        """Return one table and how it was counted."""
        return (_table(found, runs.rates), COUNTED) if found else ()

    def numbers(self, found: RunRecord | None, runs: Runs) -> dict[str, Any]:
        """Return its measurements."""
        return {"serving": found.serving} if found else {}


def sentences(record: RunRecord | None) -> list[str]:
    """Return what replicas gained, and from what load on; nothing without a benchmark."""
    if record is None or not record.serving:
        return []
    rows = record.serving
    path = next((row["path"] for row in rows if row["path"] == "/v1/forecast"), rows[0]["path"])
    best = _most(rows, path)
    if PLAIN not in best or len(best) < 2:
        return []
    plain, others = best[PLAIN], {name: row for name, row in best.items() if name != PLAIN}
    if not plain["cpu_ms_per_request"]:
        return []
    answered = join([f"{name} {fixed(row['per_second'], 0)}" for name, row in others.items()])
    dearest, least = (
        pick(row["cpu_ms_per_request"] / plain["cpu_ms_per_request"] for row in others.values()) for pick in (max, min)
    )
    ratios = " to ".join(dict.fromkeys((fixed(least, 1), fixed(dearest, 1))))
    first = f"One process answered up to {fixed(plain['per_second'], 0)} requests a second ({path}); {answered}"
    return [f"{first}, for {ratios} times the CPU per request. {_when(plain, list(others.values()))}"]


def _when(plain: ServeRow, others: list[ServeRow]) -> str:
    """Return the load from which on replicas pay."""
    each = max(row["per_second"] / max(row["replicas"], 1) for row in others)
    above = f"{fixed(plain['per_second'], 0)} requests a second"
    if any(row["per_second"] > plain["per_second"] for row in others):
        return f"Replicas pay above {above}, which one process does not answer."
    count = math.ceil(plain["per_second"] / each) if each else None
    needed = f"about {count} replicas answer as much as it does" if count else "no number of replicas was enough"
    return (
        f"Below {above} they buy one thing: the loss of a process does not end the answers. At the best rate {needed}."
    )


def _most(rows: Sequence[ServeRow], path: str) -> dict[str, ServeRow]:
    """Return, per server, the row with the most requests a second."""
    best: dict[str, ServeRow] = {}
    for row in rows:
        if row["path"] == path and row["per_second"] >= best.get(row["server"], row)["per_second"]:
            best[row["server"]] = row
    return best


def _table(record: RunRecord, rates: RateTable | None) -> Table:
    lines = [_line(row, rates) for row in record.serving or ()]
    return table(f"Requests to {record.name}", lines, text=("Server", "Path"))


def _line(row: ServeRow, rates: RateTable | None) -> dict[str, str]:
    line = {
        "Server": row["server"],
        "Path": row["path"],
        "Clients": str(row["clients"]),
        "Requests/s": fixed(row["per_second"], 0),
        "p50, ms": fixed(row["p50_ms"], 1),
        "p99, ms": fixed(row["p99_ms"], 1),
        "CPU, ms": fixed(row["cpu_ms_per_request"], 1),
        "Memory": size(row["memory_bytes"]),
        "Failed": str(row["failed"]),
    }
    if rates:
        price = price_per_thousand(row, rates)
        line[f"{rates.currency} per 1,000"] = money(price) if price is not None else NOTHING
    return line
