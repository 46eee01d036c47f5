"""Run folders: written whole or not at all, by one process at a time, under names that stay inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sp500.config import RunConfig
from sp500.disk import append_durably
from sp500.errors import ConfigError, RunExists, RunLocked
from sp500.runs.record import EpochMetrics, RunRecord, Seconds, machine
from sp500.runs.store import Run, RunStore

START = datetime(2024, 1, 2, tzinfo=UTC)


def record(name: str = "run", minutes: int = 0, **other: object) -> RunRecord:
    return RunRecord.model_validate(
        {
            "name": name, "experiment": "train", "arm": "solo", "status": "ok", "config": {"task": "returns"},
            "fingerprint": "0" * 16, "seed": 0, "started": START, "finished": START + timedelta(minutes=minutes),
            "seconds": Seconds(setup=1, train=2, total=3), "machine": machine(1), "versions": {"python": "3.11"},
            **other,
        }
    )  # fmt: skip


def epoch(number: int) -> EpochMetrics:
    return EpochMetrics(epoch=number, train_loss=1 / 3 + number, valid_loss=None, samples=7, seconds=0.1)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture
def run(store: RunStore) -> Run:
    with store.open("run") as run:
        return run


# Names.


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../..", "../run", "/tmp/run", "a/b", "Run", "-run", ".run", "a b", "run\n", "r" * 64]
)
def test_name_that_could_leave_the_folder_is_refused_and_makes_nothing(
    store: RunStore, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="run name"), store.open(name):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "r" * 63, "2024-01-02.mlp_3"])
def test_good_name_is_a_folder_of_the_store(store: RunStore, name: str) -> None:
    with store.open(name) as run:
        assert run.path == store.root / name
        assert run.path.is_dir()


def test_store_that_cannot_be_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"io\.save_dir .*runs"), RunStore(tmp_path / "runs").open("run"):
        pass


# One writer.


def test_name_that_was_used_is_refused_without_resume_and_taken_with_it(store: RunStore) -> None:
    with store.open("run") as run:
        run.write_config({"task": "returns"})
    with pytest.raises(RunExists, match=r"--resume"), store.open("run"):
        pass
    with store.open("run", resume=True) as run:
        assert (run.path / "config.yaml").exists()


def test_run_that_died_before_its_settings_were_written_leaves_the_name_free(store: RunStore) -> None:
    with store.open("run"):
        pass
    with store.open("run"):
        pass


@pytest.mark.parametrize("resume", [True, False])
def test_run_that_is_open_is_locked(store: RunStore, resume: bool) -> None:
    with store.open("run"), pytest.raises(RunLocked, match=f"process {os.getpid()}"), store.open("run", resume=resume):
        pass


def test_other_runs_are_not_locked(store: RunStore) -> None:
    with store.open("first"), store.open("second"):
        pass


def test_error_inside_a_run_frees_it(store: RunStore) -> None:
    with pytest.raises(ZeroDivisionError), store.open("run"):
        raise ZeroDivisionError
    with store.open("run"):
        pass


HOLD = """
import sys
from pathlib import Path
from sp500.runs.store import RunStore
with RunStore(Path(sys.argv[1])).open("run") as run:
    run.write_config({"task": "returns"})
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_of_another_process_is_named_and_taken_over_when_it_is_killed(store: RunStore) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunLocked, match=f"process {holder.pid} on "), store.open("run", resume=True):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with store.open("run", resume=True) as run:
        assert run.record() is None


# What a run keeps.


def test_settings_are_kept_so_that_they_run_again(run: Run) -> None:
    import yaml

    config = RunConfig.model_validate({"task": "direction", "data": {"tickers": ["KO"], "start": "2000-01-03"}})
    run.write_config(config.model_dump(mode="json"))
    assert RunConfig.model_validate(yaml.safe_load((run.path / "config.yaml").read_text())) == config


def test_epochs_come_back_as_they_were_appended(run: Run, store: RunStore) -> None:
    for number in (1, 2, 3):
        run.append_epoch(epoch(number))
    assert run.epochs() == store.epochs("run") == [epoch(1), epoch(2), epoch(3)]


def test_run_without_epochs_has_none(run: Run) -> None:
    assert run.epochs() == []


def test_line_cut_off_by_a_kill_is_left_out_wherever_it_was_cut(run: Run) -> None:
    for number in (1, 2):
        run.append_epoch(epoch(number))
    path = run.path / "epochs.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert run.epochs() == [epoch(1)]


def test_epoch_appended_after_one_cut_off_by_a_kill_is_not_glued_to_it(run: Run) -> None:
    run.append_epoch(epoch(1))
    with (run.path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 2, "tr')
    run.append_epoch(epoch(2))
    run.append_epoch(epoch(3))
    assert run.epochs() == [epoch(1), epoch(2), epoch(3)]


def test_damaged_line_before_the_last_is_refused_by_file(run: Run) -> None:
    for number in (1, 2, 3):
        run.append_epoch(epoch(number))
    path = run.path / "epochs.jsonl"
    path.write_text(path.read_text().replace('"epoch":2', '"epoch":"two"'))
    with pytest.raises(ConfigError, match=str(path)):
        run.epochs()


def test_resumed_run_replaces_its_epochs_after_a_cut_off_line(run: Run) -> None:
    append_durably(run.path / "epochs.jsonl", epoch(1).model_dump_json())
    with (run.path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 2, "tr')
    run.write_epochs(run.epochs())
    run.append_epoch(epoch(2))
    assert run.epochs() == [epoch(1), epoch(2)]


def test_run_has_no_record_until_it_ends(run: Run) -> None:
    assert run.record() is None
    run.write_record(record())
    assert run.record() == record()


def test_record_is_strict_json_even_with_a_number_that_is_none(run: Run) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    run.write_record(record(metrics={"test": {"r2": float("nan"), "sharpe": [float("inf")]}}))
    json.loads((run.path / "record.json").read_text(), parse_constant=refuse)


DAMAGED_RECORDS = ["", "{", '{"name": "run"}', "[]", "null"]


@pytest.mark.parametrize("content", DAMAGED_RECORDS)
def test_damaged_record_is_refused_by_file_when_all_are_read(store: RunStore, run: Run, content: str) -> None:
    (run.path / "record.json").write_text(content)
    with pytest.raises(ConfigError, match=str(run.path / "record.json")):
        store.records()


@pytest.mark.parametrize("content", DAMAGED_RECORDS)
def test_damaged_record_is_refused_by_file_when_its_run_is_read(run: Run, content: str) -> None:
    (run.path / "record.json").write_text(content)
    with pytest.raises(ConfigError, match=str(run.path / "record.json")):
        run.record()


def test_records_of_ended_runs_come_oldest_first(store: RunStore) -> None:
    for name, minutes in (("late", 9), ("early", 1), ("middle", 5)):
        with store.open(name) as run:
            run.write_record(record(name, minutes))
    with store.open("unfinished") as run:
        run.write_config({})
    assert [one.name for one in store.records()] == ["early", "middle", "late"]


def test_store_that_was_never_used_has_no_records(tmp_path: Path) -> None:
    assert RunStore(tmp_path / "none").records() == []


def test_uri_is_refused_as_a_folder_of_runs():
    for root in ("s3://bucket/runs", "gs://bucket"):
        with pytest.raises(ConfigError, match="is no folder"):
            RunStore(Path(root))
