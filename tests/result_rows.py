"""Parts of records, complete, of which a test changes what it is about."""

from datetime import UTC, datetime
from typing import Any

from sp500.runs.record import Machine, RunRecord, Seconds
from sp500.runs.results import ChosenConfig, SearchSummary, ShardFacts

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def run_record(name: str = "run", **changes: Any) -> RunRecord:
    """The record of a run that ended well on a machine of two cores."""
    fields: dict[str, Any] = {
        "name": name,
        "experiment": "train",
        "arm": "solo",
        "status": "ok",
        "config": {"task": "returns", "data": {}, "model": {"kind": "mlp", "hidden": 64, "layers": 2}, "train": {}},
        "fingerprint": name,
        "seed": 0,
        "started": NOW,
        "finished": NOW,
        "seconds": Seconds(setup=2, train=7, total=10),
        "machine": machine(),
        "versions": {},
    }
    return RunRecord(**(fields | changes))


def machine(cluster: dict[str, float] | None = None, **changes: Any) -> Machine:
    """A machine of two cores, with the cluster that a run used, if it used one."""
    fields: dict[str, Any] = {"cpus": 2, "memory_bytes": 8 << 30, "threads": 1, "system": "test"}
    return Machine(**(fields | {"cluster": cluster or {}} | changes))


def cells(table: Any, title: str) -> list[str]:
    """The cells of a table's column."""
    place = [column.title for column in table.columns].index(title)
    return [row.cells[place] for row in table.rows]


def chosen(**changes: Any) -> ChosenConfig:
    """The best config of a search."""
    best: dict[str, Any] = {"id": "c07", "overrides": {"model.hidden": 128}, "valid_loss": 0.4, "score": 0.9}
    return best | changes


def search_summary(**changes: Any) -> SearchSummary:
    """What a search says of itself."""
    summary: dict[str, Any] = {
        "space": "grid18",
        "method": "grid",
        "key": "k",
        "configs": 18,
        "failed": 0,
        "resumed": 0,
        "rerun": 0,
        "trial_seconds": 10.0,
        "cores": 2,
        "best": chosen(),
        "by_dataset": [],
        "deflated_sharpe": None,
    }
    return summary | changes


def shard_facts(**changes: Any) -> ShardFacts:
    """A set of shards that a run wrote."""
    facts: dict[str, Any] = {
        "uri": "/shards",
        "fingerprint": "f",
        "files": 1,
        "windows": 1000,
        "bytes": 4096,
        "reused": False,
        "writing_seconds": 1.5,
        "dropped": [],
    }
    return facts | changes
