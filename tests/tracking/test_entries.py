"""What a run becomes, and where the mirror lies."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.runs.checksums import append_line
from sp500.runs.record import EpochMetrics, RunRecord, make_record
from sp500.runs.store import Run, RunStore
from sp500.tracking import entries
from sp500.tracking.address import resolve


def write_run(folder: Path, **facts: object) -> tuple[Run, RunRecord]:
    """A run that ended well after two epochs."""
    with RunStore(folder).open("one") as run:
        run.write_config({"model": {"kind": "mlp", "hidden": 8}, "data": {"start": None, "tickers": ["KO", "AAPL"]}})
        record = make_record(RunConfig(), name="one", experiment="train", arm="solo", **facts)
        run.write_epochs(
            EpochMetrics(epoch=number, train_loss=1.0 / number, valid_loss=None, samples=10, seconds=3.0)
            for number in (1, 2)
        )
        run.write_record(record)
    return run, record


def test_values_that_are_not_finite_are_left_out_and_counted(tmp_path):
    metrics = {"test": {"mse": 2.0, "sharpe": math.nan, "mse_interval": [1.0, math.inf], "confusion_matrix": [[1]]}}
    run, _ = write_run(tmp_path, metrics=metrics, best_epoch=2)
    [entry] = entries.read_entries(run)
    found = {point.key: (point.value, point.step) for point in entry.points if point.key.startswith("test.")}
    assert found == {"test.mse": (2.0, 2), "test.mse_interval.low": (1.0, 2)}
    assert entry.left_out == 2


def test_epochs_are_steps_and_end_one_after_another_before_the_run(tmp_path):
    run, record = write_run(tmp_path)
    [entry] = entries.read_entries(run)
    losses = {point.step: (point.value, point.time_ms) for point in entry.points if point.key == "train_loss"}
    last = record.finished
    milliseconds = [round((last - timedelta(seconds=before)).timestamp() * 1000) for before in (3, 0)]
    assert losses == {1: (1.0, milliseconds[0]), 2: (0.5, milliseconds[1])}
    assert not [point for point in entry.points if point.key == "valid_loss"]


def test_params_are_the_settings_without_those_that_are_not_set(tmp_path):
    run, _ = write_run(tmp_path)
    [entry] = entries.read_entries(run)
    assert entry.params == {"model.kind": "mlp", "model.hidden": "8", "data.tickers": '["KO", "AAPL"]'}


def test_names_have_only_characters_that_mlflow_takes(tmp_path):
    run, _ = write_run(tmp_path, metrics={"test": {"hit/rate (%)": 0.5, "größe": 1.0}})
    [entry] = entries.read_entries(run)
    assert {"test.hit_rate ___", "test.gr__e"} <= {point.key for point in entry.points}


def test_fold_that_was_tried_again_is_there_once_and_a_failed_one_says_why(tmp_path):
    run, _ = write_run(tmp_path)
    dates = '"splits": {"train": ["2001-01-02", "2002-01-02"]}, "blind": true, "data": "x"'
    failed = f'{{"fold": 1, {dates}, "status": "failed", "reason": "no weather", "seconds": 1.0}}'
    good = f'{{"fold": 1, {dates}, "status": "ok", "reason": "", "seconds": 2.0, "test": {{"mse": NaN, "mae": 0.5}}}}'
    append_line(run.path / "folds.jsonl", failed)
    _, fold = entries.read_entries(run)
    assert (fold.name, fold.status, fold.tags) == ("fold 1", "FAILED", {"reason": "no weather"})
    append_line(run.path / "folds.jsonl", good)
    _, fold = entries.read_entries(run)
    assert (fold.status, fold.left_out, fold.params["train"]) == ("FINISHED", 1, "2001-01-02 to 2002-01-02")
    assert {point.key: point.value for point in fold.points} == {"seconds": 2.0, "test.mae": 0.5}


def test_damaged_fold_is_refused_with_its_line(tmp_path):
    run, _ = write_run(tmp_path)
    append_line(run.path / "folds.jsonl", '{"fold": "first"}')
    with pytest.raises(ConfigError, match=r"folds\.jsonl, line 1 is damaged"):
        entries.read_entries(run)


def test_folder_without_a_run_becomes_nothing(tmp_path):
    assert entries.read_entries(Run(tmp_path)) == []


def test_digest_changes_with_a_file_and_not_with_the_folder(tmp_path):
    when = datetime(2026, 1, 2, tzinfo=UTC)
    (here, _), (there, _) = (write_run(tmp_path / name, started=when) for name in ("a", "b"))
    for file in ("record.json", "config.yaml", "epochs.jsonl"):
        (there.path / file).write_bytes((here.path / file).read_bytes())
    digests = [entries.read_entries(run)[0].digest("") for run in (here, there)]
    assert digests[0] == digests[1]
    (there.path / "predictions.parquet").write_text("other")
    assert entries.read_entries(there)[0].digest("") != digests[0]


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("/data/ml runs", "sqlite:////data/ml runs/mlflow.db"),
        ("file:///data/ml%20runs", "sqlite:////data/ml runs/mlflow.db"),
        ("sqlite:////data/own.db", "sqlite:////data/own.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("databricks", "databricks"),
    ],
)
def test_folder_becomes_a_database_in_it_and_an_address_stays(text, uri):
    assert resolve(text).uri == uri


@pytest.mark.parametrize("folder", ["/data/what?ever", "/data/50%25", "file:///data/what%3Fever", "file:///data/a?b"])
def test_folder_that_a_database_uri_cannot_name_is_refused(folder):
    with pytest.raises(ConfigError, match="name another folder"):
        resolve(folder)


@pytest.mark.parametrize("folder", ["/data/100%", "/data/a#b", "/data/grün & 'blau'", "/data/a{b}"])
def test_folder_with_other_signs_is_the_one_of_the_database(folder):
    found = resolve(folder)
    assert make_url(found.uri).database == f"{folder}/mlflow.db"
    assert found.folder == Path(folder)


def test_artifacts_lie_next_to_the_database():
    assert resolve("/data/ml runs").artifacts == "file:///data/ml%20runs/artifacts"
    assert resolve("sqlite:////data/own.db").artifacts == "file:///data/artifacts"
    assert resolve("https://mlflow.example.com").artifacts is None


def test_file_is_refused_as_a_folder(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(ConfigError, match="is a file; expected a folder"):
        resolve(str(tmp_path / "mlflow.db"))


def test_run_is_open_while_its_lock_is_held_and_a_look_at_it_blocks_no_writer(tmp_path):
    store = RunStore(tmp_path)
    assert not Run(tmp_path / "one").is_open()
    with store.open("one") as run:
        assert run.is_open()
    assert not run.is_open()
    with store.open("one", resume=True):
        assert run.is_open()
