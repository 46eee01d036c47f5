"""A set that is larger than a node's object store."""

import re
from pathlib import Path

import numpy as np
import ray
from ray._private.worker import global_worker

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data.shards import writer
from sp500.distributed import train
from sp500.distributed.simulated_nodes import STORE_LEAST, simulate
from sp500.machine.memory import PeakMemory, run_in_subprocess
from sp500.runs.store import RunStore
from sp500.studies import scale_arms
from sp500.tasks import catalog

BUDGET = 5 * 2**28


def train_on_two_stores(folder: Path) -> dict[str, int]:
    """Train once over a set of two stores; then overfill the store, to see that spilling would have been counted."""
    once = TrainConfig(epochs=1, batch_size=16384)
    data = DataConfig(tickers=("stocks",), multiplier=64)
    config = RunConfig(num_workers=1, data=data, model=ModelConfig(kind="linear"), train=once)
    ready = scale_arms.prepare(config)
    shards = writer.write(ready.source(), str(folder / "set"))
    small = ready.dataset("float32", multiplier=1)
    with RunStore(folder).open("run") as run, simulate(1, BUDGET, STORE_LEAST) as raylets:
        with PeakMemory(0.5, raylets) as peak:
            result = train.fit_on_ray(catalog.task(config), small, config, run, shards)
        spilled = spilled_mib()
        ray.get(overfill.remote())
        return {
            "windows": shards.windows,
            "bytes": shards.bytes,
            "samples": result.samples,
            "peak": peak.bytes,
            "spilled": spilled,
            "spilled_by_overfilling": spilled_mib(),
        }


def spilled_mib() -> int:
    """What the raylets say in their logs."""
    logs = Path(global_worker.node.get_logs_dir_path()).glob("raylet*.out")
    return sum(int(count) for log in logs for count in re.findall(r"Spilled (\d+) MiB", log.read_text()))


@ray.remote
def overfill() -> None:
    kept = [ray.put(np.zeros(STORE_LEAST * 3 // 4, np.uint8)) for _ in range(2)]
    assert [len(ray.get(one)) for one in kept] == [STORE_LEAST * 3 // 4] * 2


def test_a_set_of_two_object_stores_trains_within_the_budget_and_without_spilling(tmp_path):
    found = run_in_subprocess(train_on_two_stores, tmp_path)
    assert found["bytes"] >= 2 * STORE_LEAST
    assert found["samples"] == found["windows"]
    assert 100e6 < found["peak"] <= BUDGET
    assert found["spilled"] == 0
    assert found["spilled_by_overfilling"] > 0
