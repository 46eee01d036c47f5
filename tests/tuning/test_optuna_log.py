import sqlite3
from datetime import UTC, datetime

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from sp500.config import RunConfig
from sp500.runs.trials import TrialResult
from sp500.tuning import optuna_log, space
from sp500.tuning.space import PRESETS, choices

WIDE = PRESETS["wide"]()


def results(count, over=WIDE, first=0):
    """Results whose loss is mostly the distance from a learning rate of 3e-3; every fifth has failed."""
    made = []
    for number in range(first, first + count):
        trial = space.trial(RunConfig(), over.draw(np.random.default_rng(number)))
        loss = abs(np.log(trial.config.train.lr / 3e-3)) + 0.01 * trial.config.model.dropout
        scored = (
            {"status": "ok", "valid_loss": float(loss)} if number % 5 else {"status": "failed", "reason": "diverged"}
        )
        made.append(TrialResult(id=trial.id, overrides=trial.overrides, seconds=1.5, **scored))
    return made


def opened(path, name="search"):
    """The study as another program finds it."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    found = optuna.load_study(study_name=name, storage=storage)
    trials = found.trials
    storage.remove_session()
    storage.engine.dispose()
    return found.direction, trials


def said(trials):
    return [(one.user_attrs["id"], one.state, one.value, one.params) for one in trials]


def wanted(told):
    """The rows of `said`, written down without Optuna."""
    return [
        (one.id, TrialState.COMPLETE if one.status == "ok" else TrialState.FAIL, one.valid_loss, one.overrides)
        for one in told
    ]


def test_file_has_every_result_with_what_became_of_it(tmp_path):
    told = results(10)
    optuna_log.write(tmp_path / "optuna.db", "search", WIDE, told)
    direction, trials = opened(tmp_path / "optuna.db")
    assert direction.name == "MINIMIZE"
    assert said(trials) == wanted(told)
    assert trials[0].user_attrs == {"id": told[0].id, "reason": "diverged", "loss": None, "seconds": 1.5}
    assert all(one.distributions == optuna_log.distributions(WIDE) for one in trials)
    assert [one.duration.total_seconds() for one in trials] == [1.5] * 10


@pytest.mark.parametrize("name", ["what?ever", "50%25", "a{b}#c", "grün & 'blau'"])
def test_file_lies_in_its_folder_whatever_that_is_called(tmp_path, name):
    (tmp_path / name).mkdir()
    optuna_log.write(tmp_path / name / "optuna.db", "search", WIDE, results(1))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with sqlite3.connect(tmp_path / name / "optuna.db") as file:
        assert file.execute("SELECT count(*) FROM trials").fetchone() == (1,)


def test_second_call_replaces_the_file_of_the_first(tmp_path):
    for ended in (results(4), results(9)):
        optuna_log.write(tmp_path / "optuna.db", "search", WIDE, ended)
    assert said(opened(tmp_path / "optuna.db")[1]) == wanted(ended)
    assert [path.name for path in tmp_path.iterdir()] == ["optuna.db"]


def test_results_that_the_space_does_not_have_are_left_out(tmp_path):
    stranger = TrialResult(id="x", overrides={"model.hidden": 17}, status="ok", valid_loss=1.0)
    optuna_log.write(tmp_path / "optuna.db", "search", WIDE, [stranger, *results(1)])
    assert said(opened(tmp_path / "optuna.db")[1]) == wanted(results(1))
    assert said(optuna_log.study(WIDE, [stranger, *results(1)]).trials) == wanted(results(1))


def test_time_of_a_trial_is_that_of_its_result():
    ended = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    one = results(2)[1].model_copy(update={"finished": ended, "seconds": 60.0})
    trial = optuna_log.study(WIDE, [one]).trials[0]
    assert trial.datetime_complete.astimezone(UTC) == ended
    assert trial.duration.total_seconds() == 60


def test_study_in_memory_says_which_setting_matters():
    study = optuna_log.study(WIDE, results(60))
    importances = optuna.importance.get_param_importances(study)
    assert max(importances, key=importances.get) == "train.lr"
    assert study.best_value == min(one.valid_loss for one in results(60) if one.valid_loss is not None)


def test_list_is_its_json_for_optuna_and_a_list_again_for_us():
    lists = choices("lists", {"data.tickers": (["AAPL"], ["MSFT", "KO"]), "model.hidden": (8, 16)})
    overrides = {"data.tickers": ["MSFT", "KO"], "model.hidden": 16}
    assert optuna_log.params(overrides) == {"data.tickers": '["MSFT", "KO"]', "model.hidden": 16}
    assert optuna_log.overrides(lists, optuna_log.params(overrides)) == overrides
    assert optuna_log.distributions(lists)["data.tickers"].choices == ('["AAPL"]', '["MSFT", "KO"]')


def test_loss_that_is_no_number_is_a_failure():
    lost = results(2)[1].model_copy(update={"valid_loss": float("nan")})
    assert optuna_log.study(WIDE, [lost]).trials[0].state is TrialState.FAIL
