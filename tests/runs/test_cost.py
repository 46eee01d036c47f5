"""Prices against sums done by hand, and which machine a run is billed for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rate_list import CLUSTER, GIB, RATES, TABLE, WORKER
from result_rows import search_summary

from sp500.runs import cost
from sp500.runs.cost import Pods, RateTable
from sp500.runs.record import Machine, RunRecord, Seconds

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def record(seconds: float = 3600.0, cluster: dict[str, float] | None = None, **changes: Any) -> RunRecord:
    known = {key: changes.pop(key) for key in ("simulated_nodes", "pod") if key in changes}
    machine = Machine(cpus=2, memory_bytes=8 * GIB, threads=1, system="test", cluster=cluster or {}, **known)
    fields: dict[str, Any] = {
        "name": "run",
        "experiment": "train",
        "arm": "ray",
        "status": "ok",
        "config": {},
        "fingerprint": "f",
        "seed": 0,
        "started": NOW,
        "finished": NOW,
        "seconds": Seconds(setup=1, train=1, total=seconds, earlier=changes.pop("earlier", 0.0)),
        "num_workers": 3,
        "machine": machine,
        "versions": {},
    }
    return RunRecord(**(fields | changes))


def test_price_is_count_times_resources_times_hours() -> None:
    pods = [Pods(count=3, cpus=4, gib=16, node_type="cpu"), Pods(cpus=1, gib=2)]
    # Workers: 3 * (4 * 0.05 + 16 * 0.01) = 1.08 an hour; head: 0.05 + 0.02 = 0.07; half an hour of 1.15 is 0.575.
    assert cost.amount(pods, 1800, RATES) == pytest.approx(0.575)


def test_gpus_and_spot_are_priced_as_the_table_says() -> None:
    # 10 * 0.05 + 2 * 9 + 50 * 0.01 = 19 an hour; a spot CPU node: 0.4 * (4 * 0.05 + 16 * 0.01) = 0.144.
    assert cost.amount([Pods(cpus=10, gpus=2, gib=50, node_type="h100")], 3600, RATES) == pytest.approx(19)
    assert cost.amount([Pods(cpus=4, gib=16, spot=True)], 3600, RATES) == pytest.approx(0.144)


@given(
    cpus=st.floats(0, 1000),
    gib=st.floats(0, 1000),
    count=st.integers(0, 50),
    seconds=st.lists(st.floats(0, 1e7), min_size=2, max_size=2).map(sorted),
)
def test_price_is_never_negative_and_grows_with_the_seconds(
    cpus: float, gib: float, count: int, seconds: list[float]
) -> None:
    low, high = (cost.amount([Pods(count=count, cpus=cpus, gib=gib)], one, RATES) for one in seconds)
    assert 0 <= low <= high


def test_price_is_that_of_the_pods_for_the_seconds() -> None:
    pods = [Pods(count=2, cpus=4, gib=16)]
    assert [cost.amount(pods, seconds, RATES) for seconds in (600, 1800, cost.HOUR)] == pytest.approx(
        [0.12, 0.36, 0.72]
    )


def test_run_on_a_cluster_pays_for_its_workers_nodes_and_what_stands_beside_them() -> None:
    # 3 of the 4 nodes: 3 * (4 * 0.05 + 16 * 0.01) + (0.05 + 2 * 0.01) = 1.15 an hour.
    found = cost.cost(record(7200, CLUSTER | WORKER), RATES)
    assert found is not None
    assert (found.amount, found.node_seconds, found.rented) == (pytest.approx(2.3), 3 * 7200, True)


def test_more_workers_than_nodes_pay_for_the_nodes_that_there_are() -> None:
    found = cost.cost(record(3600, CLUSTER | WORKER, num_workers=9), RATES)
    assert found is not None
    assert found.amount == pytest.approx(4 * 0.36 + 0.07)


def test_search_pays_for_all_nodes_per_config_that_ended_well() -> None:
    search = search_summary(configs=12, failed=2, cores=16)
    found = cost.cost(record(3600, CLUSTER | WORKER, num_workers=0, arm="ray", experiment="tune", search=search), RATES)
    assert found is not None
    assert found.amount == pytest.approx(1.51)  # 4 * 0.36 + 0.07
    assert found.per_trial == pytest.approx(0.151)


def test_million_windows_cost_what_the_run_did_over_its_millions() -> None:
    found = cost.cost(record(3600, CLUSTER | WORKER, samples=2_500_000), RATES)
    assert found is not None
    assert found.per_million == pytest.approx(0.46)  # 1.15 over 2.5


@pytest.mark.parametrize("status", ["stopped", "failed", "out_of_memory"])
def test_run_that_ended_half_way_costs_the_half(status: str) -> None:
    whole = cost.cost(record(1000, CLUSTER | WORKER), RATES)
    half = cost.cost(record(500, CLUSTER | WORKER, status=status), RATES)
    assert whole is not None
    assert half is not None
    assert half.amount * 2 == whole.amount > 0


def test_resumed_run_pays_for_its_earlier_attempts() -> None:
    assert cost.cost(record(300, CLUSTER | WORKER, earlier=200), RATES) == cost.cost(
        record(500, CLUSTER | WORKER), RATES
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 0, "arm": "solo"},
        {"cluster": {"CPU": 2.0, "nodes": 1.0}},
        {"cluster": {"CPU": 2.0, "nodes": 3.0}, "simulated_nodes": 2},
        {"cluster": {"CPU": 2.0, "nodes": 3.0, "hosts": 1.0, "worker_nodes": 2.0}},
    ],
)
def test_what_ran_on_one_machine_costs_what_a_laptop_does(changes: dict[str, Any]) -> None:
    own = TABLE | {"types": TABLE["types"] | {"laptop": TABLE["types"]["laptop"] | {"cpu_hour": 0.5}}}
    free, priced = (cost.cost(record(**changes), RateTable.model_validate(one)) for one in (TABLE, own))
    assert free is not None
    assert priced is not None
    assert (free.amount, free.rented) == (0, False)
    assert priced.amount == 1  # its two CPUs, once, however many workers shared them


def test_run_in_a_pod_without_ray_pays_for_what_stands_beside_workers() -> None:
    found = cost.cost(record(num_workers=0, arm="streaming", pod=True), RATES)
    assert found is not None
    assert (found.amount, found.node_seconds) == (pytest.approx(0.07), 3600)


@pytest.mark.parametrize(
    "cluster", [{}, {"nodes": 1.0, "hosts": 1.0, "worker_nodes": 0.0, "worker_CPU": 0.0, "worker_memory": 0.0}]
)
def test_run_stopped_before_it_saw_its_workers_pays_for_nodes_as_the_table_assumes(cluster: dict[str, float]) -> None:
    found = cost.cost(record(cluster=cluster, status="stopped", pod=True), RATES)
    assert found is not None
    assert found.amount == pytest.approx(3 * 0.36 + 0.07)


def test_record_older_than_workers_nodes_pays_for_the_mean_of_its_nodes() -> None:
    old = {"CPU": 8.0, "memory": 32.0 * GIB, "nodes": 4.0}
    found = cost.cost(record(cluster=old, num_workers=2), RATES)
    assert found is not None
    assert found.amount == pytest.approx(2 * (2 * 0.05 + 8 * 0.01) + 0.07)


@pytest.mark.parametrize(("name", "each"), [("A100", 3), ("H100", 9), ("L4", 3)])
def test_gpus_name_decides_the_type_of_node(name: str, each: int) -> None:
    cluster = CLUSTER | WORKER | {"GPU": 4.0, "worker_GPU": 1.0, f"accelerator_type:{name}": 4.0}
    found = cost.cost(record(cluster=cluster, device="cuda", num_workers=1), RATES)
    assert found is not None
    assert found.amount == pytest.approx(each + 0.36 + 0.07)


def test_gpus_that_a_run_did_not_train_on_are_not_billed() -> None:
    cluster = CLUSTER | WORKER | {"GPU": 4.0, "worker_GPU": 1.0}
    assert cost.cost(record(cluster=cluster), RATES) == cost.cost(record(cluster=CLUSTER | WORKER), RATES)


def test_run_on_gpus_that_was_stopped_half_way_costs_the_half() -> None:
    cluster = CLUSTER | WORKER | {"GPU": 4.0, "worker_GPU": 1.0, "accelerator_type:H100": 4.0}
    whole = cost.cost(record(1000, cluster, device="cuda"), RATES)
    half = cost.cost(record(500, cluster, status="stopped"), RATES)
    kept_off = cost.cost(record(500, cluster, status="stopped", config={"train": {"device": "cpu"}}), RATES)
    assert whole is not None
    assert half is not None
    assert kept_off is not None
    assert half.amount * 2 == whole.amount
    assert kept_off.amount * 10 < half.amount


def test_search_that_was_stopped_pays_for_all_nodes_too() -> None:
    found = cost.cost(
        record(3600, CLUSTER | WORKER, num_workers=0, arm="ray", experiment="tune", status="stopped"), RATES
    )
    assert found is not None
    assert found.amount == pytest.approx(1.51)


def test_spot_nodes_cost_less_and_the_head_does_not() -> None:
    found = cost.cost(record(cluster=CLUSTER | WORKER | {"spot": 1.0}), RATES)
    assert found is not None
    assert found.amount == pytest.approx(3 * 0.144 + 0.07)


@pytest.mark.parametrize("arm", ["all"])
def test_run_whose_parts_are_runs_is_not_paid_twice(arm: str) -> None:
    assert cost.cost(record(arm=arm), RATES) is None


def test_rule_that_names_no_type_is_refused_with_the_types_there_are() -> None:
    with pytest.raises(ValidationError, match="alone is 'mine'; expected a name under types: laptop, cpu, a100, h100"):
        RateTable.model_validate(TABLE | {"rule": TABLE["rule"] | {"alone": "mine"}})


def test_table_of_the_repository_is_one_and_a_laptop_is_free() -> None:
    path = Path(__file__).parents[2] / "cluster" / "rates.yaml"
    table = RateTable.model_validate(yaml.safe_load(path.read_text()))
    assert cost.amount([Pods(cpus=8, gib=32, node_type="laptop")], 3600, table) == pytest.approx(0)
    assert cost.amount([Pods(cpus=8, gib=32)], 3600, table) > 0
