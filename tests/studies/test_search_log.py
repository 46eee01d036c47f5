"""Files of a search that others may change: the copy for Optuna's readers, which never ends it, and its space."""

import sqlite3
from contextlib import closing, nullcontext

import pytest

from sp500.errors import ConfigError
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.studies import search_steps
from sp500.studies.settings import SearchSettings
from sp500.tuning import optuna_log
from sp500.tuning.limits import Limits, Plan
from sp500.tuning.space import choices

PLAN = Plan(choices("two", {"model.hidden": (8, 16)}), "grid", 2, "sequential", Limits())


class Impatient(optuna_log._Hasty):
    """Does not wait for a lock."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"timeout": 0})


def hold(path):
    """What optuna-dashboard does while it writes a note."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return closing(connection)


def change(statement):
    def act(path):
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        return nullcontext()

    return act


def damage(path):
    path.write_bytes(b"\xff" * 5000)
    return nullcontext()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (hold, "database is locked"),
        (change("UPDATE alembic_version SET version_num = 'v1.3.0.a'"), "optuna storage upgrade"),
        (change("DROP TABLE studies"), "Record does not exist"),
        (damage, "file is not a database"),
    ],
)
def test_file_that_cannot_be_written_is_a_warning_of_one_line(tmp_path, monkeypatch, caplog, act, reason):
    monkeypatch.setattr(optuna_log, "_Hasty", Impatient)
    run = Run(tmp_path / "lk")
    run.path.mkdir()
    search_steps.log(run, PLAN)
    assert not caplog.records
    with act(run.path / "optuna.db"):
        search_steps.log(Run(tmp_path / "lk"), PLAN)
    (told,) = caplog.records
    assert (told.levelname, len(told.getMessage().splitlines())) == ("WARNING", 1)
    assert reason in told.getMessage()


@pytest.mark.parametrize(
    ("space", "mode", "same"),
    [
        ("model.hidden: [8, 16]\ntrain.lr: [0.001, 0.01]", "packed", True),
        ("model.hidden: [8, 16]\ntrain.lr: [0.001, 0.01]", "all", True),
        ("model.hidden: [8, 16, 32]\ntrain.lr: [0.001, 0.01]", "packed", False),
        ("model.hidden: [8, 16, 32]\ntrain.lr: [0.001, 0.01]", "all", False),
        ("model.hidden: [8, 64]\ntrain.lr: [0.001, 0.01]", "packed", False),
    ],
)
def test_ended_search_is_not_resumed_with_another_space_of_the_same_name(tmp_path, space, mode, same):
    (tmp_path / "space.yaml").write_text(space)
    best = {"overrides": {"model.hidden": 16, "train.lr": 0.001}}
    record = RunRecord.model_construct(name="w", search={"configs": 4, "best": best})
    settings = SearchSettings(space=str(tmp_path / "space.yaml"), mode=mode)
    with nullcontext() if same else pytest.raises(ConfigError, match="choose another --name"):
        settings.check_ended(record)
    (tmp_path / "space.yaml").unlink()
    settings.check_ended(record)
