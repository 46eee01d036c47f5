"""Run folders: written whole or not at all, by one process at a time, under names that stay inside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from result_rows import run_record

from sp500.config import IOConfig, RunConfig
from sp500.errors import ConfigError, DiskError, RunExists, RunLocked
from sp500.machine.disk import append_durably
from sp500.runs.record import EpochMetrics, RunRecord, Seconds, machine
from sp500.runs.store import Run, RunStore
from sp500.schema import validate

START = datetime(2024, 1, 2, tzinfo=UTC)


def record(name: str = "run", minutes: int = 0, **other: object) -> RunRecord:
    facts = {
        "config": {"task": "returns"}, "fingerprint": "0" * 16, "started": START, "machine": machine(1),
        "finished": START + timedelta(minutes=minutes), "seconds": Seconds(setup=1, train=2, total=3),
    }  # fmt: skip
    return run_record(name, **(facts | other))


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
def test_name_that_could_leave_the_folder_is_refused_and_makes_nothing(store, tmp_path, name):
    with pytest.raises(ConfigError, match="run name"), store.open(name):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "r" * 63, "2024-01-02.mlp_3"])
def test_good_name_is_a_folder_of_the_store(store, name):
    with store.open(name) as run:
        assert run.path == store.root / name
        assert run.path.is_dir()


def test_store_that_cannot_be_a_folder_is_refused_by_name(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"io\.save_dir .*runs"), RunStore(tmp_path / "runs").open("run"):
        pass


# One writer.


def test_name_that_was_used_is_refused_without_resume_and_taken_with_it(store):
    with store.open("run") as run:
        run.write_config({"task": "returns"})
    with pytest.raises(RunExists, match=r"--resume"), store.open("run"):
        pass
    with store.open("run", resume=True) as run:
        assert (run.path / "config.yaml").exists()


@pytest.mark.parametrize(("status", "way"), [("ok", "--resume shows its result"), ("failed", "or --overwrite")])
def test_name_of_an_ended_run_is_refused_with_the_ways_out(store, status, way):
    with store.open("run") as run:
        run.write_config({"task": "returns"})
        run.append_epoch(epoch(1))
        run.write_record(record(status=status))
    with pytest.raises(RunExists, match=way), store.open("run"):
        pass
    with store.open("run", overwrite=True) as run:
        assert sorted(path.name for path in run.path.iterdir()) == [".holder", ".lock"]


@pytest.mark.parametrize(("status", "file", "free"), [("failed", "", 1), ("failed", "folds.jsonl", 0), ("ok", "", 0)])
def test_run_that_failed_before_its_first_unit_of_work_leaves_its_name_free(store, status, file, free):
    with store.open("run") as run:
        run.write_config({"task": "returns"})
        run.write_record(record(status=status))
        if file:
            (run.path / file).touch()
    with nullcontext() if free else pytest.raises(RunExists), store.open("run") as run:
        assert not (run.path / "record.json").exists()


def test_run_that_died_before_its_settings_were_written_leaves_the_name_free(store):
    with store.open("run"), store.open("another"):
        pass
    with store.open("run"):
        pass


@pytest.mark.parametrize("way", [{"resume": True}, {}, {"overwrite": True}], ids=str)
def test_run_that_is_open_is_locked(store, way):
    with store.open("run"), pytest.raises(RunLocked, match=f"process {os.getpid()}"), store.open("run", **way):
        pass


def test_error_inside_a_run_frees_it(store):
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


def test_lock_of_another_process_is_named_and_taken_over_when_it_is_killed(store):
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


def test_settings_are_kept_so_that_they_run_again(run):
    import yaml

    config = RunConfig.model_validate({"task": "direction", "data": {"tickers": ["KO"], "start": "2000-01-03"}})
    run.write_config(config.model_dump(mode="json"))
    assert RunConfig.model_validate(yaml.safe_load((run.path / "config.yaml").read_text())) == config


def test_epochs_come_back_as_they_were_appended(run, store):
    assert run.epochs() == []
    for number in (1, 2, 3):
        run.append_epoch(epoch(number))
    assert run.epochs() == store.epochs("run") == [epoch(1), epoch(2), epoch(3)]


def test_line_cut_off_by_a_kill_is_left_out_wherever_it_was_cut(run):
    for number in (1, 2):
        run.append_epoch(epoch(number))
    path = run.path / "epochs.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert run.epochs() == [epoch(1)]


def test_epoch_appended_after_one_cut_off_by_a_kill_is_not_glued_to_it(run):
    run.append_epoch(epoch(1))
    with (run.path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 2, "tr')
    run.append_epoch(epoch(2))
    run.append_epoch(epoch(3))
    assert run.epochs() == [epoch(1), epoch(2), epoch(3)]


def test_damaged_line_before_the_last_is_refused_by_file(run):
    for number in (1, 2, 3):
        run.append_epoch(epoch(number))
    path = run.path / "epochs.jsonl"
    path.write_text(path.read_text().replace('"epoch":2', '"epoch":"two"'))
    with pytest.raises(ConfigError, match=f"{path}, line 2 "):
        run.epochs()
    path.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match=f"{path}, line 1 "):
        run.epochs()


def test_resumed_run_replaces_its_epochs_after_a_cut_off_line(run):
    append_durably(run.path / "epochs.jsonl", epoch(1).model_dump_json())
    with (run.path / "epochs.jsonl").open("a") as file:
        file.write('{"epoch": 2, "tr')
    run.write_epochs(run.epochs())
    run.append_epoch(epoch(2))
    assert run.epochs() == [epoch(1), epoch(2)]


def test_run_has_no_record_until_it_ends(run):
    assert run.record() is None
    run.write_record(record())
    assert run.record() == record()


def test_record_is_strict_json_even_with_a_number_that_is_none(run):
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    run.write_record(record(metrics={"test": {"r2": float("nan"), "sharpe": [float("inf")]}}))
    json.loads((run.path / "record.json").read_text(), parse_constant=refuse)


def test_record_keeps_a_reason_whose_path_is_not_utf_8_and_settings_refuse_one(run):
    name = os.fsdecode(b"caf\xe9.png")
    run.write_record(record(status="failed", reason=f"{name}: is not an image", metrics={"test": {name: [name]}}))
    found, escaped = run.record(), "caf\\udce9.png"
    assert found is not None
    assert (found.reason, found.metrics) == (f"{escaped}: is not an image", {"test": {escaped: [escaped]}})
    with pytest.raises(ConfigError, match=r"save_dir: 'caf.*UTF-8"):
        validate(IOConfig, {"save_dir": name}, "io")


def changed(**changes: object) -> str:
    """A record's file with other values in it, as by a program that is not ours, and the checksum for them."""
    text = json.dumps(record().model_dump(mode="json") | changes, indent=1).removesuffix("\n}")
    return f'{text},\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def flipped(text: str) -> str:
    """Change one digit of the run's seconds."""
    assert '"total": 3.0' in text
    return text.replace('"total": 3.0', '"total": 2.0')


DAMAGED_RECORDS = {
    "empty": "",
    "cut off": "{",
    "half": '{"name": "run"}',
    "list": "[]",
    "null": "null",
    "not UTF-8": b"\xff\xfe",
    "time without a zone": changed(finished="2026-01-01T00:00:00"),
    "status of a newer version": changed(status="cancelled"),
    "name that leads out": changed(name="../../x"),
    "name of 3,000 characters": changed(name="x" * 3000),
    "metrics that are a list": changed(metrics=[1]),
    "data of another type": changed(data=[1]),
    "search of another type": changed(search="none"),
    "without a checksum": json.dumps(record().model_dump(mode="json"), indent=1),
}
EACH_DAMAGE = pytest.mark.parametrize("content", DAMAGED_RECORDS.values(), ids=DAMAGED_RECORDS)


@EACH_DAMAGE
def test_damaged_record_is_refused_or_listed_by_its_file_and_the_others_are_read(store, run, content):
    path = run.path / "record.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with store.open("good") as good:
        good.write_record(record("good"))
    runs = store.scan()
    assert [one.name for one in runs.records] == ["good"]
    [line] = runs.damaged
    assert str(path) in line
    assert len(line) < 600
    with pytest.raises(ConfigError, match=str(path)):
        run.record()


def test_record_with_a_flipped_digit_or_another_number_is_refused(run):
    path = run.path / "record.json"
    run.write_record(record(metrics={"test": {"mse": 0.25}}))
    whole = path.read_text()
    for damaged in (flipped(whole), *(whole.replace("0.25", value) for value in ("1e999", "NaN", '"low"', "[]"))):
        path.write_text(damaged)
        with pytest.raises(ConfigError, match="checksum"):
            run.record()


def test_record_that_is_a_folder_is_listed(store, run):
    (run.path / "record.json").mkdir()
    assert [str(run.path / "record.json") in line for line in store.scan().damaged] == [True]


SCAN = """
import os, sys
from pathlib import Path
from sp500.errors import ConfigError
from sp500.runs.store import RunStore

os.setgid(65534)
os.setuid(65534)
store = RunStore(Path(sys.argv[1]))
print(*store.scan().damaged, sep="\\n")
try:
    with store.open("closed"):
        pass
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_what_another_user_may_not_read_or_write_is_named_and_ends_nothing(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        store = RunStore(Path(folder))
        for name, mode in (("closed", 0o755), ("hidden", 0o700)):
            with store.open(name) as run:
                run.write_record(record(name))
                (run.path / "record.json").chmod(0o600)
            run.path.chmod(mode)
        done = subprocess.run([sys.executable, "-c", SCAN, folder], capture_output=True, text=True, check=False)
        first, second, third = done.stdout.splitlines()
        assert first.startswith(f"{folder}/closed/record.json: cannot be read")
        assert second.startswith(f"{folder}/hidden")
        assert third.startswith(f"{folder}/closed: cannot be written")


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folder_of_another_user_is_no_run_of_this_one(tmp_path, kind):
    victim, run = tmp_path / "victim", tmp_path / "runs" / "run"
    victim.write_text("mine")
    run.parent.mkdir()
    if kind == "folder":
        run.mkdir()
        (run / ".holder").symlink_to(victim)
    else:
        (tmp_path / "mine").mkdir()
        run.symlink_to(tmp_path / "mine")
    os.chown(run, 65534, 65534, follow_symlinks=False)
    with pytest.raises(ConfigError, match="user 65534"), RunStore(run.parent).open("run", resume=True):
        pass
    assert victim.read_text() == "mine"


def test_lock_and_holder_are_not_written_through_links(store, tmp_path):
    victim, run = tmp_path / "victim", store.root / "run"
    victim.write_text("mine")
    run.mkdir(parents=True)
    (run / ".holder").symlink_to(victim)
    with store.open("run"):
        assert victim.read_text() == "mine"
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(victim)
    with pytest.raises(DiskError, match="link"), store.open("run"):
        pass
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "report", "", "x" * 64])
def test_no_path_is_made_of_a_name_that_is_not_valid(store, name):
    for ask in (store.record, store.epochs):
        with pytest.raises(ConfigError, match="must match"):
            ask(name)


def test_records_of_ended_runs_come_oldest_first(store):
    for name, minutes in (("late", 9), ("early", 1), ("middle", 5)):
        with store.open(name) as run:
            run.write_record(record(name, minutes))
    with store.open("unfinished") as run:
        run.write_config({})
    assert [one.name for one in store.scan().records] == ["early", "middle", "late"]


def test_run_in_a_renamed_or_copied_folder_has_the_name_of_that(store, run):
    run.write_record(record())
    shutil.copytree(run.path, run.path.with_name("copy"))
    shutil.copytree(run.path, run.path.with_name("copy 2"))
    assert sorted(one.name for one in store.scan().records) == ["copy", "run", "run"]


def test_uri_is_refused_as_a_folder_of_runs():
    for root in ("s3://bucket/runs", "gs://bucket"):
        with pytest.raises(ConfigError, match="is not a folder"):
            RunStore(Path(root))
