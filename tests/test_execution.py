"""A run's record however it ends: stopped, killed and resumed, with the seconds of every attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from sp500.config import IOConfig, ModelConfig
from sp500.errors import ConfigError, DiskError, SP500Error
from sp500.execution import Experiment, execute, run_name
from sp500.runs.record import EpochMetrics, RunRecord, make_record
from sp500.runs.store import Run, RunStore
from sp500.studies.settings import SearchSettings, TrainSettings, WalkForwardSettings

EPOCH = EpochMetrics(epoch=1, train_loss=1.0, valid_loss=None, samples=10, seconds=1.0)
KILLED = """
import sys
from pathlib import Path
from test_execution import EPOCH, Waiting, settings
from sp500.execution import execute

def main(config, run):
    run.write_cluster({"CPU": 4.0, "nodes": 3.0})
    run.append_epoch(EPOCH)
    print("trained", flush=True)
    sys.stdin.read()

execute(settings(Path(sys.argv[1]), num_workers=2), main)
"""


class Waiting(Experiment):
    """An experiment that does what its main does."""

    experiment: ClassVar[str] = "train"


def settings(folder: Path, **changes: object) -> Waiting:
    return Waiting(io=IOConfig(save_dir=folder, run_name="one"), **changes)


def well(config: Waiting, run: Run) -> RunRecord:
    return make_record(config, name=run.name, experiment="train", arm=config.arm)


@pytest.fixture
def killed(tmp_path: Path) -> RunStore:
    """The store of a run that SIGKILL ended after an epoch, 100 seconds after it began."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"trained\n"
        process.kill()
    store = RunStore(tmp_path)
    began = Run(tmp_path / "one").start_record()
    assert began is not None
    at = began.started.timestamp() + 100
    os.utime(tmp_path / "one" / "epochs.jsonl", (at, at))
    return store


def test_killed_run_tells_what_it_was_given_and_when_it_last_wrote(killed):
    (found,) = killed.scan().unended
    assert killed.scan().records == ()
    assert (found.name, found.status, found.num_workers) == ("one", "stopped", 2)
    assert found.machine.cluster == {"CPU": 4.0, "nodes": 3.0}
    assert found.seconds.total == pytest.approx(100, abs=1e-3)


def test_resumed_run_counts_the_killed_attempt_once(killed):
    config = settings(killed.root, num_workers=2, resume=True)
    record = execute(config, well)
    assert record.seconds.earlier == pytest.approx(100, abs=1e-3)
    assert killed.record("one") == record
    assert killed.scan().unended == ()


def test_attempts_add_up_however_each_ended(killed):
    config = settings(killed.root, num_workers=2, resume=True)

    def fail(config: Waiting, run: Run) -> RunRecord:
        raise SP500Error("no luck")

    with pytest.raises(SP500Error, match="no luck"):
        execute(config, fail)
    failed = killed.record("one")
    assert failed is not None
    assert failed.status == "failed"
    assert execute(config, well).seconds.earlier == pytest.approx(100 + failed.seconds.total, abs=1e-3)


def test_failed_run_keeps_the_cluster_that_it_was_given(tmp_path):
    def fail(config: Waiting, run: Run) -> RunRecord:
        run.write_cluster({"CPU": 4.0}, 2)
        raise SP500Error("no luck")

    with pytest.raises(SP500Error):
        execute(settings(tmp_path, num_workers=2), fail)
    record = RunStore(tmp_path).record("one")
    assert record is not None
    assert (record.machine.cluster, record.machine.simulated_nodes) == ({"CPU": 4.0}, 2)


def test_run_that_was_not_interrupted_has_no_earlier_seconds(tmp_path):
    assert execute(settings(tmp_path), well).seconds.earlier == 0


def test_first_error_is_kept_when_the_disk_has_no_room_for_a_record_of_it(make_disk, caplog):
    disk = make_disk("size=8m")

    def fill() -> None:
        with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"x" * 4096)

    def failing(config: Waiting, run: Run) -> RunRecord:
        fill()
        raise SP500Error("the first error")

    def writing(config: Waiting, run: Run) -> RunRecord:
        fill()
        with (run.path / "predictions.parquet").open("wb") as file:
            file.write(b"x" * 4096)
        raise AssertionError

    with pytest.raises(SP500Error, match="the first error"):
        execute(settings(disk), failing)
    assert f"{disk}/one/record.json: cannot be written (No space left on device; 0.0 MiB free)" in caplog.text
    (disk / "filler").unlink()
    with pytest.raises(DiskError, match=f"{disk}/one.*No space left on device; 0.0 MiB free"):
        execute(settings(disk, resume=True), writing)
    with pytest.raises(DiskError, match=f"{disk}/one/config.yaml.*0.0 MiB free"):
        execute(settings(disk, resume=True), well)
    (disk / "filler").unlink()
    assert execute(settings(disk, resume=True), well).status == "ok"


@pytest.mark.parametrize("content", ["", "- 1", "{", "data: {window: many}", b"\xff"])
def test_damaged_settings_of_a_run_are_named_when_it_is_resumed(tmp_path, content):
    execute(settings(tmp_path), well)
    path = tmp_path / "one" / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=str(path)):
        execute(settings(tmp_path, resume=True), well)


def test_search_is_named_after_its_space_and_a_training_after_its_model():
    assert run_name(SearchSettings(space="lstm12")).startswith("tune-lstm12-")
    assert run_name(SearchSettings(space="spaces/My space.yaml")).startswith("tune-my-space-")
    assert run_name(WalkForwardSettings(best_of="wide")).startswith("walk_forward-wide-")
    assert run_name(TrainSettings(model=ModelConfig(kind="lstm"))).startswith("train-lstm-")
