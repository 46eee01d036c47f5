"""Costs in the report: columns where there is something to pay, sums by hand, and how far the forecast missed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from result_rows import NOW, cells, machine, run_record, search_summary
from scale_rows import one

from sp500 import formatting
from sp500.report import costs, page
from sp500.runs.cost import RateTable
from sp500.runs.record import RunRecord, Seconds

# An hour of the cluster below: 2 workers of 10 CPUs at 0.1, nothing beside them.
RATES = RateTable.model_validate(
    {
        "currency": "EUR",
        "date": "2026-01-01",
        "source": "an offer",
        "types": {
            "laptop": {"cpu_hour": 0, "gib_hour": 0, "node": {"cpus": 1, "gib": 1}},
            "node": {"cpu_hour": 0.1, "gib_hour": 0, "node": {"cpus": 10, "gib": 1}},
        },
        "rule": {"alone": "laptop", "cluster": "node", "gpu": "node"},
    }
)
CLUSTER = {"CPU": 20.0, "nodes": 3.0, "hosts": 3.0, "worker_nodes": 2.0, "worker_CPU": 10.0}
CLUSTER |= {"worker_GPU": 0.0, "worker_memory": 2.0**30}


def record(name: str, seconds: float, cluster: dict[str, float] | None = None, **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "arm": "ray" if cluster else "solo",
        "config": {"task": "returns", "model": {"kind": "linear"}, "train": {}, "data": {}},
        "finished": NOW + timedelta(seconds=seconds),
        "seconds": Seconds(setup=10, train=seconds - 10, total=seconds),
        "samples": 4_000_000,
        "num_workers": 2 if cluster else 0,
        "machine": machine(cluster),
        "metrics": {"test": {"mse": 1.0, "samples": 5}, "naive": {"zero": {"mse": 1.1}}},
    }
    return run_record(name, **(fields | changes))


def written(folder: Path, *records: RunRecord, rates: RateTable | None = RATES, **more: Any) -> str:
    page.write(records, {}, {}, folder, rates=rates, **more)
    return (folder / "report.md").read_text()


def test_model_on_a_cluster_has_its_cost_beside_one_that_was_free(tmp_path: Path) -> None:
    text = written(tmp_path, record("laptop", 100), record("cluster", 1800, CLUSTER))
    header = next(line for line in text.splitlines() if line.startswith("| Model"))
    assert "Cost, EUR" in header
    # Half an hour of 20 CPUs at 0.1.
    assert "| 1.00 | cluster (Ray ×2) |" in text  # noqa: RUF001
    assert "| 0 | laptop (one process) |" in text
    assert "2 runs cost 1.00 EUR, at rates of 2026-01-01, which are assumptions." in text
    assert "Rates of 2026-01-01, which are assumptions: an offer." in text


@pytest.mark.parametrize("rates", [RATES, None])
def test_laptop_that_is_free_adds_no_column_and_no_section(tmp_path: Path, rates: RateTable | None) -> None:
    text = written(tmp_path, record("laptop", 100), rates=rates)
    assert "| Cost" not in text
    assert "## Cost" not in text


def test_cluster_without_a_table_has_no_costs(tmp_path: Path) -> None:
    assert "Cost" not in written(tmp_path, record("cluster", 1800, CLUSTER), rates=None)


def test_runs_that_failed_or_left_no_record_are_told_apart_and_counted(tmp_path: Path) -> None:
    failed = record("failed", 360, CLUSTER, status="failed", metrics={})
    killed = record("killed", 720, CLUSTER, status="stopped", metrics={})
    text = written(tmp_path, record("good", 1800, CLUSTER), failed, unended=[killed])
    # 1.00, 0.20 and 0.40
    assert "3 runs cost 1.60 EUR, 0.60 of it for runs that did not end well" in text
    assert "counted up to the last file written: killed." in text


def test_scale_row_has_its_cost_and_that_of_a_million_windows(tmp_path: Path) -> None:
    row = one(1, "ray", 9.0, 2, run="arm", place="cluster")
    parent = record("scale", 9000, CLUSTER, experiment="scale", arm="all", scale=[row], metrics={})
    text = written(tmp_path, record("arm", 1800, CLUSTER, experiment="scale", metrics={}), parent)
    assert "| Cost, EUR | EUR per million |" in text
    assert "| 1.00 | 0.25 |" in text  # four million windows
    assert "1 run cost 1.00 EUR" in text  # the experiment itself is paid by its arms


def test_search_tells_what_each_finished_config_cost() -> None:
    search = search_summary(configs=12, failed=2, cores=20)
    side = record("search", 1800, CLUSTER, experiment="tune", arm="ray", search=search)
    found = costs.search_table(costs.of([side], [], RATES), {"Ray Tune": side})
    assert found is not None
    assert cells(found, "EUR per finished config") == ["0.10"]
    assert cells(found, "Cost, EUR") == ["1.00"]
    assert cells(found, "Node-seconds") == ["3,600"]


def test_error_of_the_back_test_is_in_the_report_also_without_prices(tmp_path: Path) -> None:
    made = {"experiment": "scale", "fingerprint": "same", "metrics": {}}
    runs = [record(f"s{n}", 10 + took, CLUSTER, num_workers=n, **made) for n, took in ((1, 100), (2, 60), (4, 50))]
    text = written(tmp_path, *runs, rates=None)
    # On 1 and 2 workers 80 seconds divide and 20 do not: 10 + 40 on four, where 60 were measured.
    assert "Scale: fitted on 1 and 2 workers, the forecast for 4 is 50 s; measured were 60 s, an error of −17%" in text  # noqa: RUF001
    assert "**Forecast: scale, 4,000,000 windows**" in text
    assert "| Price" not in text


def test_forecast_on_a_machine_that_is_free_has_no_price_and_says_why(tmp_path: Path) -> None:
    made = {"experiment": "scale", "fingerprint": "same", "metrics": {}}
    runs = [record(f"s{n}", 10 + took, num_workers=n, **made) for n, took in ((1, 100), (2, 60))]
    text = written(tmp_path, *runs)
    assert "No cost: the table of rates has laptop, the type of these machines, at 0." in text
    assert "Cost, EUR" not in text


def test_runs_on_a_cluster_that_is_free_cost_nothing_and_the_report_says_why(tmp_path: Path) -> None:
    free = RATES.model_copy(update={"types": dict.fromkeys(RATES.types, RATES.types["laptop"])})
    text = written(tmp_path, record("cluster", 1800, CLUSTER), rates=free)
    assert "1 run cost 0 EUR, since the table has their machines at 0, at rates of 2026-01-01" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (1234.567, "1,234.57"), (0.5, "0.50"), (0.0123, "0.012"), (2e-9, "<0.000001")],
)
def test_money_has_cents_and_below_one_two_digits(value: float | None, text: str) -> None:
    assert formatting.money(value) == text
