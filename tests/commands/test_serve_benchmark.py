"""`sp500 serve NAME --benchmark`, of which only the plain process runs here: Ray's servers take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

import sp500
from sp500.commands.serving import benchmark
from sp500.runs.store import RunStore


def test_plain_process_is_measured_and_kept_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    data = {"tickers": ["KO"], "start": "2020-01-01", "window": 10}
    sp500.train(name="m1", data=data, train={"epochs": 1}, runs_dir=runs)
    monkeypatch.setattr(benchmark, "KINDS", benchmark.KINDS[:1])
    monkeypatch.setattr(benchmark, "CLIENTS", (1, 2))
    kept, rows = benchmark.measure(runs, "m1", 0.2)
    assert [(row["path"], row["clients"], row["failed"]) for row in rows] == [
        (path, clients, 0) for path in ("/v1/windows", "/v1/forecast") for clients in (1, 2)
    ]
    assert all(row["requests"] > 0 and row["cpu_ms_per_request"] > 0 and row["memory_bytes"] > 2**20 for row in rows)
    record = RunStore(runs).record(kept.name)
    assert record is not None
    assert record.serving == rows
    assert record.experiment == "serve"
    assert len(benchmark.text(rows).splitlines()) == 1 + len(rows) + 1
    unanswered = {**rows[0], "p50_ms": None, "p99_ms": None}
    assert "-        -" in benchmark.text([unanswered])
