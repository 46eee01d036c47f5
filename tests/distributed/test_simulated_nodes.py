"""Two workers on two nodes, and a set that is larger than a node's object store; and who can see these nodes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import other_users
import pytest
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


def train_on_two_nodes(folder: Path) -> dict[str, Any]:
    """Train twice over a set of two stores; then overfill a store, to see that spilling would have been counted."""
    other_users.as_a_user(folder / "home")
    twice = TrainConfig(epochs=2, batch_size=16384, early_stop_patience=0)
    data = DataConfig(tickers=("stocks",), multiplier=64)
    config = RunConfig(num_workers=2, data=data, model=ModelConfig(kind="linear"), train=twice)
    ready = scale_arms.prepare(config)
    shards = writer.write(ready.source(), str(folder / "set"))
    small = ready.dataset("float32", multiplier=1)
    with RunStore(folder).open("run") as run, simulate(2, BUDGET, STORE_LEAST) as raylets:
        with PeakMemory(0.5, raylets) as peak:
            result = train.fit_on_ray(catalog.task(config), small, config, run, shards, spread=True)
        spilled = spilled_mib()
        ray.get(overfill.remote())
        sessions = other_users.session_folder()
        found = {
            "windows": shards.windows,
            "bytes": shards.bytes,
            "samples": [epoch.samples for epoch in result.epochs],
            "losses": [epoch.train_loss for epoch in result.epochs],
            "peak": peak.bytes,
            "spilled": spilled,
            "spilled_by_overfilling": spilled_mib(),
            "others": other_users.look(),
        }
    return found | {"left": sessions.exists()}


def spilled_mib() -> int:
    """What the raylets say in their logs."""
    logs = Path(global_worker.node.get_logs_dir_path()).glob("raylet*.out")
    return sum(int(count) for log in logs for count in re.findall(r"Spilled (\d+) MiB", log.read_text()))


@ray.remote
def overfill() -> None:
    kept = [ray.put(np.zeros(STORE_LEAST * 3 // 4, np.uint8)) for _ in range(2)]
    assert [len(ray.get(one)) for one in kept] == [STORE_LEAST * 3 // 4] * 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_subprocess(train_on_two_nodes, tmp_path_factory.mktemp("two"))


def test_two_nodes_train_on_every_window_of_every_epoch_within_their_memory_and_without_spilling(found):
    assert found["bytes"] >= 2 * STORE_LEAST
    assert found["samples"] == [found["windows"]] * 2
    assert found["losses"][0] > found["losses"][1]
    assert 100e6 < found["peak"] <= BUDGET
    assert found["spilled"] == 0
    assert found["spilled_by_overfilling"] > 0


def test_simulated_nodes_are_closed_to_other_users_and_to_other_machines(found):
    other_users.check(found["others"])
    assert not found["left"]
