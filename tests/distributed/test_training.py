"""One loop, any number of workers: real Ray, real processes."""

import contextlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sp500.config import DataConfig, IOConfig, ModelConfig, RunConfig, TrainConfig
from sp500.errors import ResourcesError
from sp500.execution import execute
from sp500.runs.archive.fetching import fetch
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.studies import train
from sp500.studies.settings import TrainSettings


def settings(workers: int, **train: object) -> RunConfig:
    # 5734 windows in batches of 301: neither they nor the last one of 15 can be shared evenly by two workers.
    return RunConfig(
        num_workers=workers,
        data=DataConfig(),
        model=ModelConfig(hidden=16),
        train=TrainConfig(**{"epochs": 3, "batch_size": 301, "dtype": "float64", **train}),
    )


def trained(config: RunConfig, folder: Path, on_epoch: Callable[[object], None] | None = None) -> RunRecord:
    with RunStore(folder).open(f"w{config.num_workers}") as run:
        return train.train(config, run, on_epoch=on_epoch)


@pytest.fixture(scope="module")
def solo(tmp_path_factory) -> RunRecord:
    return trained(settings(0), tmp_path_factory.mktemp("solo"))


def numbers(metrics: dict) -> dict[str, float]:
    return {key: value for key, value in metrics["test"].items() if isinstance(value, float)}


def actors() -> dict[psutil.Process, str]:
    """Processes of this test's Ray that do something now, and for which class or task."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name := re.match(r"ray::(\w+)", " ".join(process.cmdline())):
                found[process] = name[1]
    return found


def test_one_ray_worker_equals_solo_bit_for_bit_and_needs_one_other_process(ray_cluster, solo, tmp_path):
    before, seen, ended = set(actors().items()), set(), threading.Event()
    watcher = threading.Thread(target=watch, args=(seen, ended))  # the worker trains for less than a second
    watcher.start()
    try:
        assert trained(settings(1), tmp_path).metrics == solo.metrics
    finally:
        ended.set()
        watcher.join()
    # By its class or what it does; a process that was idle may have become it.
    workers = {process for process, name in seen - before if name not in {"IDLE", "SynchronizationActor"}}
    assert len(workers) == 1
    assert {name for process, name in seen if process in workers} & {"RayTrainWorker", "execute"}


def watch(seen: set[tuple[psutil.Process, str]], ended: threading.Event) -> None:
    """Collect the actors that are there until `ended`."""
    while not ended.wait(0.01):
        seen.update(actors().items())


def train_workers() -> list[psutil.Process]:
    """Processes of this test's Ray that are workers of Ray Train now."""
    return [process for process, name in actors().items() if name == "RayTrainWorker"]


def kill_one(epochs: Path, before: set[int], killed: list[int], ended: threading.Event) -> None:
    """End a worker that was not there `before` once three epochs are done."""
    while not ended.wait(0.01) and not killed:
        if epochs.exists() and epochs.read_text().count("\n") >= 3:
            for process in train_workers():
                if process.pid not in before and not killed:
                    process.kill()
                    killed.append(process.pid)


def test_archived_run_with_a_killed_worker_goes_on_from_the_last_checkpoint_to_the_numbers_of_solo(
    ray_cluster, tmp_path
):
    longer = {"epochs": 30, "early_stop_patience": 0}
    solo = trained(settings(0, **longer), tmp_path / "solo")
    run, archive = tmp_path / "runs" / "a", f"file://{tmp_path}/archive"
    io = IOConfig(save_dir=run.parent, run_name="a", archive=archive)
    killed, ended = [], threading.Event()
    before = {process.pid for process in train_workers()}
    killer = threading.Thread(target=kill_one, args=(run / "epochs.jsonl", before, killed, ended))
    killer.start()
    try:
        record = execute(TrainSettings(**{**dict(settings(2, **longer)), "io": io}), train.train)
    finally:
        ended.set()
        killer.join()
    assert killed
    assert numbers(record.metrics) == pytest.approx(numbers(solo.metrics), rel=1e-9)
    assert record.fingerprint == solo.fingerprint
    assert record.samples == solo.samples == 30 * 5734
    lines = (run / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 31))
    fetched = fetch(RunStore(tmp_path / "elsewhere"), "a", archive)
    assert RunStore(tmp_path / "elsewhere").record("a") == record
    assert {Path(name).name for name in fetched.versions} == {
        path.name for path in (run / "checkpoints").glob("epoch-*")
    }


def test_gpus_that_are_not_there_are_refused_at_once(ray_cluster, tmp_path):
    with pytest.raises(ResourcesError, match=r"--num-workers 8 needs a GPU .* and 0 GPUs on 1 node\. Use"):
        trained(settings(8, device="cuda"), tmp_path)
