"""A table of rates that sums by hand are easy with, and a cluster of four workers and a head."""

from typing import Any

from sp500.runs.cost import RateTable

GIB = 2**30
TABLE: dict[str, Any] = {
    "currency": "USD",
    "date": "2026-01-01",
    "source": "a test",
    "types": {
        "laptop": {"cpu_hour": 0, "gib_hour": 0, "node": {"cpus": 2, "gib": 8}},
        "cpu": {"cpu_hour": 0.05, "gib_hour": 0.01, "spot_discount": 0.6, "node": {"cpus": 4, "gib": 16}},
        "a100": {"cpu_hour": 0.05, "gpu_hour": 3, "gib_hour": 0.01, "node": {"cpus": 10, "gpus": 1, "gib": 50}},
        "h100": {"cpu_hour": 0.05, "gpu_hour": 9, "gib_hour": 0.01, "node": {"cpus": 10, "gpus": 1, "gib": 50}},
    },
    "rule": {"alone": "laptop", "cluster": "cpu", "gpu": "a100", "gpus": {"A100": "a100", "H100": "h100"}},
    "beside": [{"cpus": 1, "gib": 2}],
}
RATES = RateTable.model_validate(TABLE)
CLUSTER = {"CPU": 16.0, "nodes": 5.0, "hosts": 5.0, "worker_nodes": 4.0}
WORKER = {"worker_CPU": 4.0, "worker_GPU": 0.0, "worker_memory": 16.0 * GIB, "spot": 0.0}
