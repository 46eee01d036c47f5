"""Prices against sums done by hand, and which machine a run is billed for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rate_list import CLUSTER, GIB, RATES, TABLE, WORKER
from result_rows import machine, run_record, search_summary

from sp500.runs import cost
from sp500.runs.cost import Pods, RateTable
from sp500.runs.record import RunRecord, Seconds


def record(seconds: float = 3600.0, cluster: dict[str, float] | None = None, **changes: Any) -> RunRecord:
    known = {key: changes.pop(key) for key in ("simulated_nodes", "pod") if key in changes}
    took = Seconds(setup=1, train=1, total=seconds, earlier=changes.pop("earlier", 0.0))
    facts = {"arm": "ray", "config": {}, "num_workers": 3, "machine": machine(cluster, **known), "seconds": took}
    return run_record(**(facts | changes))


# Workers: 3 * (4 * 0.05 + 16 * 0.01) = 1.08 an hour; head: 0.05 + 0.02 = 0.07; half an hour of 1.15 is 0.575.
# GPUs: 10 * 0.05 + 2 * 9 + 50 * 0.01 = 19 an hour; a spot CPU node: 0.4 * (4 * 0.05 + 16 * 0.01) = 0.144.
PRICES = [
    ([Pods(count=3, cpus=4, gib=16, node_type="cpu"), Pods(cpus=1, gib=2)], 1800, 0.575),
    ([Pods(cpus=10, gpus=2, gib=50, node_type="h100")], 3600, 19),
    ([Pods(cpus=4, gib=16, spot=True)], 3600, 0.144),
    *(([Pods(count=2, cpus=4, gib=16)], seconds, 0.72 * seconds / 3600) for seconds in (600, 1800, 3600)),
]


@pytest.mark.parametrize(("pods", "seconds", "price"), PRICES)
def test_price_is_count_times_resources_times_hours(pods, seconds, price):
    assert cost.amount(pods, seconds, RATES) == pytest.approx(price)


@given(
    cpus=st.floats(0, 1000),
    gib=st.floats(0, 1000),
    count=st.integers(0, 50),
    seconds=st.lists(st.floats(0, 1e7), min_size=2, max_size=2).map(sorted),
)
def test_price_is_never_negative_and_grows_with_the_seconds(cpus, gib, count, seconds):
    low, high = (cost.amount([Pods(count=count, cpus=cpus, gib=gib)], one, RATES) for one in seconds)
    assert 0 <= low <= high


def gpus(name: str) -> dict[str, float]:
    return {"GPU": 4.0, "worker_GPU": 1.0, f"accelerator_type:{name}": 4.0}


NODES = CLUSTER | WORKER
SEARCH = {"num_workers": 0, "experiment": "tune"}
# 3 of the 4 nodes: 3 * (4 * 0.05 + 16 * 0.01) + (0.05 + 2 * 0.01) = 1.15 an hour.
BILLS: dict[str, tuple[RunRecord, float]] = {
    "workers' nodes and those next to them": (record(7200, NODES), 2.3),
    "more workers than nodes": (record(3600, NODES, num_workers=9), 4 * 0.36 + 0.07),
    "a search, of all nodes": (record(3600, NODES, status="stopped", **SEARCH), 4 * 0.36 + 0.07),
    "a pod without Ray": (record(num_workers=0, arm="streaming", pod=True), 0.07),
    "workers never seen": (record(status="stopped", pod=True), 3 * 0.36 + 0.07),
    "a head alone was seen": (
        record(
            cluster={"nodes": 1.0, "hosts": 1.0, "worker_nodes": 0.0, "worker_CPU": 0.0, "worker_memory": 0.0},
            status="stopped",
            pod=True,
        ),
        3 * 0.36 + 0.07,
    ),
    "older than workers' nodes: the mean of all": (
        record(cluster={"CPU": 8.0, "memory": 32.0 * GIB, "nodes": 4.0}, num_workers=2),
        2 * (2 * 0.05 + 8 * 0.01) + 0.07,
    ),
    **{
        name: (record(cluster=NODES | gpus(name), device="cuda", num_workers=1), each + 0.36 + 0.07)
        for name, each in {"A100": 3, "H100": 9, "L4": 3}.items()
    },
    "GPUs that it did not train on": (record(cluster=NODES | {"GPU": 4.0, "worker_GPU": 1.0}), 1.15),
    "spot nodes and a head that is none": (record(cluster=NODES | {"spot": 1.0}), 3 * 0.144 + 0.07),
}


@pytest.mark.parametrize(("run", "bill"), BILLS.values(), ids=BILLS)
def test_run_is_billed_for_the_nodes_that_it_had(run, bill):
    found = cost.cost(run, RATES)
    assert found is not None
    assert found.amount == pytest.approx(bill)


def test_cost_is_shared_by_configs_that_ended_well_and_by_millions_of_windows():
    found = cost.cost(record(3600, NODES, search=search_summary(configs=12, failed=2, cores=16), **SEARCH), RATES)
    assert found is not None
    assert found.per_trial == pytest.approx(0.151)
    found = cost.cost(record(3600, NODES, samples=2_500_000), RATES)
    assert found is not None
    assert (found.per_million, found.node_seconds, found.rented) == (pytest.approx(0.46), 3 * 3600, True)
    assert cost.cost(BILLS["a pod without Ray"][0], RATES).node_seconds == 3600


@pytest.mark.parametrize("status", ["stopped", "failed", "out_of_memory"])
def test_run_that_ended_half_way_costs_the_half(status):
    whole = cost.cost(record(1000, CLUSTER | WORKER), RATES)
    half = cost.cost(record(500, CLUSTER | WORKER, status=status), RATES)
    assert whole is not None
    assert half is not None
    assert half.amount * 2 == whole.amount > 0


def test_resumed_run_pays_for_its_earlier_attempts():
    assert cost.cost(record(300, NODES, earlier=200), RATES) == cost.cost(record(500, NODES), RATES)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 0, "arm": "solo"},
        {"cluster": {"CPU": 2.0, "nodes": 1.0}},
        {"cluster": {"CPU": 2.0, "nodes": 3.0}, "simulated_nodes": 2},
        {"cluster": {"CPU": 2.0, "nodes": 3.0, "hosts": 1.0, "worker_nodes": 2.0}},
    ],
)
def test_what_ran_on_one_machine_costs_what_a_laptop_does(changes):
    own = TABLE | {"types": TABLE["types"] | {"laptop": TABLE["types"]["laptop"] | {"cpu_hour": 0.5}}}
    free, priced = (cost.cost(record(**changes), RateTable.model_validate(one)) for one in (TABLE, own))
    assert free is not None
    assert priced is not None
    assert (free.amount, free.rented) == (0, False)
    assert priced.amount == 1  # its two CPUs, once, however many workers shared them


def test_run_on_gpus_that_was_stopped_half_way_costs_the_half():
    cluster = NODES | gpus("H100")
    whole, half, kept_off = (
        cost.cost(one, RATES)
        for one in (
            record(1000, cluster, device="cuda"),
            record(500, cluster, status="stopped"),
            record(500, cluster, status="stopped", config={"train": {"device": "cpu"}}),
        )
    )
    assert half.amount * 2 == whole.amount
    assert kept_off.amount * 10 < half.amount


def test_run_whose_parts_are_runs_is_not_paid_twice():
    assert cost.cost(record(arm="all"), RATES) is None


def test_rule_that_names_no_type_is_refused_with_the_types_there_are():
    with pytest.raises(ValidationError, match=r"alone is 'mine'; .*laptop, cpu, a100, h100"):
        RateTable.model_validate(TABLE | {"rule": TABLE["rule"] | {"alone": "mine"}})


def test_table_of_the_repository_is_one_and_a_laptop_is_free():
    path = Path(__file__).parents[2] / "cluster" / "rates.yaml"
    table = RateTable.model_validate(yaml.safe_load(path.read_text()))
    assert cost.amount([Pods(cpus=8, gib=32, node_type="laptop")], 3600, table) == pytest.approx(0)
    assert cost.amount([Pods(cpus=8, gib=32)], 3600, table) > 0
