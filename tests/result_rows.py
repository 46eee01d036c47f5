"""Parts of records, complete, of which a test changes what it is about."""

from typing import Any

from sp500.runs.results import ChosenConfig, SearchSummary, ShardFacts


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
