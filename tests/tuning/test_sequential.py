import time

import pytest

from sp500.config import DataConfig, RunConfig, TrainConfig
from sp500.tasks.settings import SyntheticConfig
from sp500.training.loop import FitResult
from sp500.tuning import sequential, space, trial_data


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
        data=DataConfig(seed=3),
    )


@pytest.fixture(scope="module")
def made(base):
    return trial_data.prepare([base])[trial_data.key(base)]


def test_result_says_what_was_reached(base, made):
    result = sequential.run_trial(made, space.trial(base, {"model.hidden": 8}))
    assert (result.status, result.epochs, result.samples) == ("ok", 2, 2 * len(made.dataset.train))
    assert 0 < result.valid_loss < 10
    assert result.score == result.valid_loss / made.naive_loss


def test_trial_does_not_depend_on_the_trials_before_it(base, made):
    trials = space.grid(base, {"model.dropout": (0.0, 0.5), "train.seed": (0, 1)})
    forwards = {trial.id: sequential.run_trial(made, trial).valid_loss for trial in trials}
    backwards = {trial.id: sequential.run_trial(made, trial).valid_loss for trial in reversed(trials)}
    assert forwards == backwards


def test_diverging_trial_says_why(base, made):
    result = sequential.run_trial(made, space.trial(base, {"train.lr": 1e30, "train.clip": 0.0}))
    assert result.status == "failed"
    assert "diverged" in result.reason


def hang(made: object, trial: object) -> FitResult:
    time.sleep(60)
    raise AssertionError


def starve(made: object, trial: object) -> FitResult:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 160000000000 bytes")


@pytest.mark.parametrize(
    ("fitted", "reason"), [(hang, "took longer than 0.2 s"), (starve, "out of memory: DefaultCPUAllocator")]
)
def test_trial_that_hangs_or_takes_too_much_is_a_failure(base, made, fitted, reason):
    started = time.monotonic()
    result = sequential.run_trial(made, space.trial(base, {"model.hidden": 8}), 0.2, fitted)
    assert (result.status, result.valid_loss) == ("failed", None)
    assert reason in result.reason
    assert time.monotonic() - started < 30


def test_data_that_cannot_be_made_fails_its_own_trials():
    base = RunConfig(data=DataConfig(tickers=("AAPL",), start="2015-01-01"))
    configs = [space.trial(base, {"data.window": window}).config for window in (5, 100_000)]
    found = trial_data.prepare(configs)
    short, long = (found[trial_data.key(config)] for config in configs)
    assert short.naive_loss > 0
    assert "too_short" in long
    failed = sequential.run_trial(long, space.trial(base, {"data.window": 100_000}))
    assert (failed.status, failed.reason) == ("failed", long)
