"""What a load counts."""

from __future__ import annotations

from pathlib import Path

from http_server import serving

from sp500.serving import load


def test_load_counts_answers_and_failures(served_runs: Path) -> None:
    with serving(served_runs, "synthetic") as (client, served, _):
        x = served.choice.champion.predictor.recipe.test_input.numbers.tolist()
        good = load.load(f"{client.url}/v1/windows", {"x": x}, clients=4, seconds=0.5)
        bad = load.load(f"{client.url}/v1/windows", {"x": 1}, clients=2, seconds=0.2)
    gone = load.load(f"{client.url}/v1/windows", {"x": x}, clients=2, seconds=0.2)
    assert good["failed"] == 0
    assert good["requests"] >= 4
    assert 0 < good["p50_ms"] <= good["p99_ms"] <= good["longest_ms"]
    assert bad["requests"] == bad["failed"] >= 2
    assert gone["requests"] == gone["failed"] >= 2
