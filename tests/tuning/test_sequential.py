import pytest

from sp500.config import DataConfig, RunConfig, SyntheticConfig, TrainConfig
from sp500.tasks import catalog
from sp500.tuning import sequential, space


@pytest.fixture(scope="module")
def small():
    base = RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
        data=DataConfig(seed=3),
    )
    task = catalog.task(base)
    return base, task, task.prepare(base)


def test_every_trial_has_a_result_in_order(small):
    base, task, dataset = small
    trials = space.grid(base, {"model.hidden": (4, 8), "train.lr": (1e-3, 1e-2)})
    results = list(sequential.run(task, dataset, trials))
    assert [one.id for one in results] == [trial.id for trial in trials]
    assert all(one.status == "ok" and one.valid_loss > 0 and one.epochs == 2 for one in results)


def test_trial_does_not_depend_on_the_trials_before_it(small):
    base, task, dataset = small
    trials = space.grid(base, {"model.dropout": (0.0, 0.5), "train.seed": (0, 1)})
    together = [one.valid_loss for one in sequential.run(task, dataset, trials)]
    alone = [sequential.run_trial(task, dataset, trial).valid_loss for trial in reversed(trials)]
    assert together == alone[::-1]


def test_diverging_trial_says_why_and_the_next_one_is_run(small):
    base, task, dataset = small
    trials = [space.trial(base, {"train.lr": 1e30, "train.clip": 0.0}), space.trial(base, {"train.lr": 1e-3})]
    first, second = sequential.run(task, dataset, trials)
    assert (first.status, second.status) == ("failed", "ok")
    assert "diverged" in first.reason
