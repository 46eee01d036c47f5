"""The walk-forward script on real prices: its record, what it takes from another run, and what it refuses."""

import json

import pytest
import yaml
from result_rows import chosen, search_summary

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.runs.record import ended
from sp500.runs.store import RunStore

FEW = ("--data.tickers", "AAPL", "KO", "--model.kind", "linear", "--train.epochs", 2, "--folds", 3)


@pytest.fixture
def searched(tmp_path):
    """A folder with a search of the index that chose a wider net than its base and validated into 2018."""
    base = RunConfig(
        num_workers=2,
        data=DataConfig(window=20),
        model=ModelConfig(hidden=32),
        train=TrainConfig(batch_size=100, per_worker_batch=True),
    )
    best = chosen(overrides={"model.hidden": 128, "train.lr": 0.01})
    data = {"splits": {"valid": ["2013-01-02", "2018-03-01"]}}
    record = ended(base, name="s", experiment="tune", arm="all", search=search_summary(best=best), data=data)
    with RunStore(tmp_path).open("s") as run:
        run.write_record(record)
    return tmp_path


def test_folds_of_real_prices_are_judged_and_no_better_than_such_returns_allow(forked, tmp_path):
    done = forked("walk_forward", "--runs-dir", tmp_path, "--name", "w", "--json", *FEW)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [row["status"] for row in record["folds"]] == ["ok"] * 3
    assert [row["windows"]["test"] for row in record["folds"]] == [2 * 252] * 3
    assert record["folds"][-1]["splits"]["test"][1] == "2022-12-27"  # the day after is known, the one after that not
    assert record["metrics"]["improvement"]["count"] == 3
    # Daily returns are nearly unpredictable: more than a little would be a leak.
    assert record["metrics"]["improvement"]["mean"] < 0.02
    assert len((tmp_path / "w" / "folds.jsonl").read_text().splitlines()) == 3
    assert "fold 3/3" in done.stderr
    again = forked("walk_forward", "--runs-dir", tmp_path, "--name", "w", "--json", "--resume")
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_chosen_config_and_its_data_are_taken_under_the_flags(forked, searched):
    done = forked("walk_forward", "--runs-dir", searched, "--best-of", "s", "--print-config", "--train.lr", 0.1)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    assert (shown["model"]["hidden"], shown["data"]["window"], shown["data"]["tickers"]) == (128, 20, [])
    # Trained alone: two workers with a batch each of 100 are one batch of 200.
    assert (shown["train"]["batch_size"], shown["train"]["per_worker_batch"], shown["num_workers"]) == (200, False, 0)
    assert (shown["train"]["lr"], shown["best_of"]) == (0.1, "s")


def test_plan_tells_dates_and_which_folds_are_blind(forked, searched):
    done = forked("walk_forward", "--runs-dir", searched, "--best-of", "s", "--folds", 5, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    folds = json.loads(done.stdout)["folds"]
    starts = [fold["splits"]["test"][0] for fold in folds]
    assert [fold["blind"] for fold in folds] == [start > "2018-03-01" for start in starts]
    assert {fold["blind"] for fold in folds} == {True, False}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--best-of", "nothing"), 2, "--best-of nothing: "),
        (("--task", "synthetic"), 2, "folds are cut by date"),
        (("--folds", 40, "--dry-run"), 3, "too_short: "),
        (("--config", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_what_cannot_be_walked_is_refused_in_one_message(forked, tmp_path, flags, code, said):
    done = forked("walk_forward", "--runs-dir", tmp_path, *flags)
    assert done.returncode == code
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
