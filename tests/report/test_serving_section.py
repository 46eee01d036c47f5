"""The report's section on serving: what replicas bought, and the price of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sp500.config import RunConfig
from sp500.report import page, serving
from sp500.runs.cost import RateTable
from sp500.runs.record import RunRecord, make_record
from sp500.runs.results import ServeRow

RATES = RateTable.model_validate(yaml.safe_load((Path(__file__).parents[2] / "cluster" / "rates.yaml").read_text()))


def row(server: str, replicas: int, clients: int, per_second: float, cpu_ms: float, **more: Any) -> ServeRow:
    return {
        "server": server,
        "replicas": replicas,
        "path": "/v1/forecast",
        "clients": clients,
        "requests": int(per_second * 10),
        "failed": 0,
        "per_second": per_second,
        "p50_ms": 5.0,
        "p99_ms": 9.0,
        "longest_ms": 20.0,
        "cpu_ms_per_request": cpu_ms,
        "memory_bytes": 2**30,
        "ready_seconds": 4.0,
        **more,
    }


def record(*rows: ServeRow) -> RunRecord:
    return make_record(RunConfig(), name="serve-m1", experiment="serve", arm="all", serving=list(rows))


def test_without_a_benchmark_there_is_no_section(tmp_path: Path) -> None:
    assert serving.newest([]) is None
    report = page.write([], {}, {}, tmp_path)
    assert "serving" not in report.numbers
    assert "serving" not in report.verdicts


def test_slower_replicas_are_told_to_buy_no_speed() -> None:
    [said] = serving.sentences(record(row("plain", 0, 8, 200, 5), row("1 replica on Ray", 1, 8, 40, 20)))
    assert "One process answered up to 200 requests a second (/v1/forecast); 1 replica on Ray 40" in said
    assert "for 4.0 times the CPU per request" in said
    assert "Below 200 requests a second they buy one thing" in said
    assert "about 5 replicas answer as much" in said


def test_no_sentence_without_the_cpu_of_one_process() -> None:
    assert serving.sentences(record(row("plain", 0, 8, 200, 0), row("1 replica on Ray", 1, 8, 40, 20))) == []


def test_faster_replicas_pay_above_what_one_process_answers() -> None:
    [said] = serving.sentences(record(row("plain", 0, 8, 200, 5), row("2 replicas on Ray", 2, 32, 300, 6)))
    assert "Replicas pay above 200 requests a second" in said


def test_price_is_that_of_cpu_and_memory_at_the_load() -> None:
    node = RATES.types[RATES.rule.cluster]
    found = serving.price_per_thousand(row("plain", 0, 1, 100, 36), RATES)
    # 36 ms of a CPU and a GiB for 10 ms, a thousand times.
    assert found == pytest.approx(36 / 3600 * node.cpu_hour + 10 / 3600 * node.gib_hour)
    assert serving.price_per_thousand(row("plain", 0, 1, 0, 0), RATES) is None


def test_page_has_the_newest_benchmark_with_prices(tmp_path: Path) -> None:
    old = record(row("plain", 0, 1, 1, 1))
    new = record(row("plain", 0, 8, 200, 5), row("1 replica on Ray", 1, 8, 40, 20, failed=3, p50_ms=None))
    report = page.write([old, new], {}, {}, tmp_path, rates=RATES)
    assert [one["per_second"] for one in report.numbers["serving"]] == [200, 40]
    text = (tmp_path / "report.md").read_text()
    assert "## Serving" in text
    assert "USD per 1,000" in text
    assert "| 1 replica on Ray | /v1/forecast | 8 | 40 | - |" in text
