"""Runs of every kind in a real sqlite store of MLflow, compared with their files line by line.

Then servers that answer 500, hang, or are gone, and a real one at the same address.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import forks
import pytest
import yaml
from http_fakes import Fake, serving
from tracking_runs import (
    ENVIRONMENT,
    SMALL,
    Database,
    command,
    free_port,
    mlflow_server,
    run,
    sync,
    sync_command,
    until,
)

NAMES = {"ok", "failed", "killed", "stopped", "resumed", "search", "walk"}
STATUS = {"failed": "FAILED", "killed": "KILLED", "stopped": "KILLED"}
IMPORTED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert not end.code, end
print(sorted(name for name in sys.modules if name.partition(".")[0] == "mlflow" or name.startswith("sp500.tracking")))
"""


def broken(port: int) -> AbstractContextManager[Fake]:
    """A server that answers 500 to everything."""
    return serving(lambda request: request.reply(500), port)


@contextmanager
def hanging(port: int) -> Iterator[None]:
    """Takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", port), backlog=64):
        yield


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check(database: Database, runs: Path) -> None:
    """Every run once, with each value of its epochs, trials and folds once and unchanged."""
    parents = database.parents()
    assert parents.keys() == {path.name for path in runs.iterdir() if path.is_dir()}
    for name, id_ in parents.items():
        points = database.points(id_)
        found = {(key, step): value for key, step, value in points}
        assert len(found) == len(points)
        wanted = {
            (key, line["epoch"]): value
            for line in lines(runs / name / "epochs.jsonl")
            for key, value in line.items()
            if key not in ("epoch", "finished") and value is not None
        }
        of_epochs = {key for key, _ in wanted}
        assert {at: value for at, value in found.items() if at[0] in of_epochs} == wanted
        assert database.status(id_) == STATUS.get(name, "FINISHED")
        of_parts = {f"trial {line['id']}": line["valid_loss"] for line in lines(runs / name / "trials.jsonl")}
        of_parts |= {f"fold {line['fold']}": line["test"]["mse"] for line in lines(runs / name / "folds.jsonl")}
        children = database.children(id_)
        assert children.keys() == of_parts.keys()
        for part, child in children.items():
            values = {key: value for key, _, value in database.points(child)}
            assert values["valid_loss" if part.startswith("trial") else "test.mse"] == of_parts[part]
            assert database.status(child) == "FINISHED"


def test_runs_of_every_kind_are_there_once_and_a_second_sync_writes_nothing(runs, tmp_path):
    first = sync(runs, tmp_path / "store")
    database = Database(tmp_path / "store" / "mlflow.db")
    check(database, runs)
    assert {one["run"]: one["state"] for one in first["runs"]} == dict.fromkeys(NAMES, "new")
    assert {one["run"]: one["parts"] for one in first["runs"]}["search"] == 18
    before = database.rows("select * from metrics order by 1, 2, 3, 4")
    second = sync(runs, tmp_path / "store")
    assert {one["state"] for one in second["runs"]} == {"same"}
    assert sum(one["points"] for one in second["runs"]) == 0
    assert database.rows("select * from metrics order by 1, 2, 3, 4") == before
    assert database.runs("deleted") == {}


@pytest.mark.parametrize("at", [3, 15])
def test_sync_killed_half_way_is_completed_by_the_next(runs, store, at):
    database = Database(store / "mlflow.db")
    process = forks.Script(sync_command(runs, store))
    until(lambda: database.count() >= at, process, 0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    sync(runs, store)
    check(database, runs)


def test_config_record_and_predictions_lie_in_mlflow_as_they_are(few_runs, store):
    sync(few_runs, store.as_uri(), "--weights")
    database = Database(store / "mlflow.db")
    ok = database.parents()["ok"]
    config, record = yaml.safe_load((few_runs / "ok" / "config.yaml").read_text()), (few_runs / "ok" / "record.json")
    params, tags = database.of("params", ok), database.of("tags", ok)
    assert params["train.epochs"] == str(config["train"]["epochs"]) == "2"
    assert params["task"] == "synthetic"
    kept = json.loads(record.read_text())
    assert (tags["sp500.run"], tags["sp500.fingerprint"]) == ("ok", kept["fingerprint"])
    assert (tags["sp500.arm"], tags["sp500.git"]) == ("solo", kept["versions"]["git"])
    assert tags["sp500.machine"].startswith(f"{kept['machine']['cpus']} CPUs")
    values = {key: value for key, _, value in database.points(ok)}
    test = {f"test.{key}": value for key, value in kept["metrics"]["test"].items() if isinstance(value, float)}
    assert test
    assert test.items() <= values.items()
    folder = store / "artifacts" / ok / "artifacts"
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = {
        name: (few_runs / "ok" / name).read_bytes() for name in ("config.yaml", "record.json", "predictions.parquet")
    }
    weights = (few_runs / "ok" / "checkpoints" / "best" / "model.safetensors").read_bytes()
    assert found == {**files, "best/model.safetensors": weights}


def test_run_made_anew_under_its_name_takes_the_place_of_the_old_one(few_runs, store, tmp_path):
    sync(few_runs, store)
    database = Database(store / "mlflow.db")
    old = database.parents()["ok"]
    with closing(sqlite3.connect(database.path)) as written:
        written.execute("insert into tags (key, value, run_uuid) values ('mlflow.note.content', 'mine', ?)", (old,))
        written.commit()
    shutil.copytree(few_runs / "ok", tmp_path / "before" / "ok", symlinks=True)
    shutil.rmtree(few_runs / "ok")
    run("train", few_runs, "ok", *SMALL, "--train.lr", "0.005")
    states = {one["run"]: one["state"] for one in sync(few_runs, store)["runs"]}
    assert states == {"killed": "same", "search": "same", "ok": "made anew"}
    check(database, few_runs)
    new = database.parents()["ok"]
    assert database.of("params", new)["train.lr"] == "0.005"
    assert database.of("tags", new)["mlflow.note.content"] == "mine"
    assert set(database.runs("deleted")) == {old}
    # The old folder is not let over the new run.
    refused = sync(tmp_path / "before", store, code=1)
    assert refused["missing"].keys() == {"ok"}
    assert database.parents()["ok"] == new


def test_run_that_was_made_twice_in_mlflow_is_there_once_after_a_sync(few_runs, store):
    sync(few_runs, store)
    database = Database(store / "mlflow.db")
    with closing(sqlite3.connect(database.path)) as written:  # as when the answer to its making was lost
        [columns] = (written.execute("select group_concat(name) from pragma_table_info('runs')").fetchone(),)
        names = columns[0].split(",")
        values = ",".join({"run_uuid": "'twin'"}.get(name, name) for name in names)
        written.execute(f"insert into runs ({columns[0]}) select {values} from runs where name = 'ok'")
        written.execute("insert into tags (key, value, run_uuid) values ('sp500.run', 'ok', 'twin')")
        written.commit()
    assert sorted(database.runs().values()).count("ok") == 2
    (few_runs / "ok" / "predictions.parquet").unlink()  # something to do, so that the hash of the whole no longer fits
    sync(few_runs, store)
    check(database, few_runs)


def test_damaged_run_is_named_and_keeps_no_other(few_runs, store):
    record = few_runs / "ok" / "record.json"
    record.write_text(record.read_text().replace('"solo"', '"ray"'))
    found = sync(few_runs, store, code=1)
    assert str(record) in found["missing"]["ok"]
    assert Database(store / "mlflow.db").parents().keys() == {"killed", "search"}


def test_two_syncs_at_once_write_everything_once(few_runs, tmp_path):
    argv = sync_command(few_runs, tmp_path / "store")
    both = [forks.Script(argv) for _ in range(2)]
    assert [process.wait(240) for process in both] == [0, 0]
    check(Database(tmp_path / "store" / "mlflow.db"), few_runs)
    assert Database(tmp_path / "store" / "mlflow.db").runs("deleted") == {}


def test_run_that_goes_on_is_running_and_a_stopped_sync_ends_with_its_signal(few_runs, store):
    database = Database(store / "mlflow.db")
    with (few_runs / "killed" / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # what a process that writes the run holds
        process = forks.Script(sync_command(few_runs, store, "--follow"))
        until(lambda: "runs in" in process.written(), process)
        assert database.status(database.parents()["killed"]) == "RUNNING"
    until(lambda: database.status(database.parents()["killed"]) == "KILLED", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    check(database, few_runs)


def test_folder_of_runs_that_cannot_be_written_is_mirrored(few_runs, store, make_disk):
    disk = make_disk("size=64m")
    shutil.copytree(few_runs / "ok", disk / "ok", symlinks=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert [one["state"] for one in sync(disk, store)["runs"]] == ["new"]
    assert [path.name for path in disk.iterdir()] == ["ok"]


def test_sync_without_a_server_or_to_one_that_goes_away_names_what_is_missing_and_the_next_completes_it(
    few_runs, tmp_path, monkeypatch
):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    for fault in (broken, hanging, lambda port: nullcontext()):
        with fault(port), monkeypatch.context() as patched:
            patched.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
            found = sync(few_runs, uri, code=1)
        assert (found["runs"], found["missing"].keys()) == ([], {"killed", "ok", "search"})
    with mlflow_server(tmp_path / "server", port) as database:
        process = forks.Script(sync_command(few_runs, uri))
        until(lambda: database.count() >= 5, process, 0.02)
    cut_off = process.finish(120)
    assert cut_off.returncode == 1
    assert "missing in MLflow" in cut_off.stderr
    with mlflow_server(tmp_path / "server", port) as database:
        found = sync(few_runs, uri)
        assert found["missing"] == {}
        check(database, few_runs)
        ok = database.parents()["ok"]
        kept = tmp_path / "server" / "artifacts" / "1" / ok / "artifacts"
        assert (kept / "record.json").read_bytes() == (few_runs / "ok" / "record.json").read_bytes()
        assert {one["state"] for one in sync(few_runs, uri)["runs"]} == {"same"}


INVALID_HOST = "Invalid Host header - possible DNS rebinding attack detected"
"""What a server of MLflow 3.5 or later answers, with status 403, to any host that it was not started for."""


@pytest.mark.parametrize(
    ("status", "answer", "advice"),
    [
        (403, INVALID_HOST, "--allowed-hosts 127.0.0.1:{port}\n"),
        (401, "You are not authenticated.", "MLFLOW_TRACKING_TOKEN\n"),
        (404, "<!DOCTYPE HTML>\n<p>not found", "http://127.0.0.1:{port}/mlflow/: set its address"),
        (404, '{"detail": "Not Found"}', "http://127.0.0.1:{port}/mlflow/: set its address"),
        (200, "<html>\n<p>log in", "http://127.0.0.1:{port}/mlflow/: set its address"),
        (200, '{"status": "ok"}', "http://127.0.0.1:{port}/mlflow/: set its address"),
    ],
)
def test_answer_of_another_server_is_one_message_that_says_what_to_do(tmp_path, status, answer, advice):
    with serving(lambda request: request.reply(status, answer)) as server:
        done = forks.run(sync_command(tmp_path, f"{server.url}/mlflow/"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert advice.format(port=server.port) in done.stderr
    asked = [request.path.partition("?")[0] for request in server.requests]
    assert asked == ["/mlflow/api/2.0/mlflow/experiments/get-by-name"]  # the path once, and one try


def test_training_imports_nothing_of_it_and_ends_well_next_to_a_server_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with hanging(port):
        follower = forks.Script(sync_command(tmp_path, uri, "--follow"))
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, *command("train", tmp_path, "next", *SMALL)],
            env={**ENVIRONMENT, "MLFLOW_TRACKING_URI": uri},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"
        until(lambda: "missing in MLflow: next" in follower.written(), follower)
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(60) == 143


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("", "file is not a database"),
        (
            "create table alembic_version (version_num text); insert into alembic_version values ('v3.2.0.a')",
            "v3.2.0.a",
        ),
    ],
)
def test_database_that_mlflow_did_not_make_is_one_message(tmp_path, script, reason):
    for folder in ("runs", "store"):
        (tmp_path / folder).mkdir()
    database = tmp_path / "store" / "mlflow.db"
    if script:
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(script)
    else:
        database.write_text("date,AAPL\n" * 100)
    done = forks.run(sync_command(tmp_path / "runs", tmp_path / "store"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert reason in done.stderr


def test_locked_database_is_a_server_that_is_gone(few_runs, store):
    with closing(sqlite3.connect(store / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert len(sync(few_runs, store, code=1)["missing"]) == 3
