"""The search side by side and one after another: the same trials, the same numbers."""

import pytest

from sp500.config import RunConfig, SyntheticConfig, TrainConfig
from sp500.distributed import study
from sp500.errors import SP500Error
from sp500.runs import compare
from sp500.runs.store import RunStore
from sp500.tuning import space
from sp500.tuning.ledger import Ledger

AXES = {"model.hidden": (4, 8), "train.lr": (1e-3, 1e-2), "model.dropout": (0.0, 0.5)}


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
    )


def searched(base, folder, name, *, parallel, axes=AXES, resume=False):
    seen = []
    with RunStore(folder).open(name, resume=resume) as run:
        trials = space.grid(base, axes)
        return study.search(base, run, trials, space="test", parallel=parallel, on_result=seen.append), seen


@pytest.fixture(scope="module")
def sides(ray_cluster, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sides")
    sequential, _ = searched(base, folder, "sequential", parallel=False)
    parallel, _ = searched(base, folder, "parallel", parallel=True)
    return folder, sequential, parallel


def test_both_sides_ran_the_same_trials_to_the_same_losses(sides):
    folder, _, _ = sides
    losses = [
        {name: one.valid_loss for name, one in Ledger(folder / side).results.items()}
        for side in ("sequential", "parallel")
    ]
    assert len(losses[0]) == 8
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_both_sides_choose_the_same_config_and_judge_it_alike(sides):
    _, sequential, parallel = sides
    shown = compare.searches(sequential, parallel)
    assert shown["configs"] == 8
    assert shown["same_best"] is True
    assert shown["metric_gap"] <= 1e-6
    assert parallel.metrics["test"] == sequential.metrics["test"]


def test_finished_trials_are_not_run_again(ray_cluster, sides, base):
    folder, _, parallel = sides
    again, seen = searched(base, folder, "parallel", parallel=True, resume=True)
    assert seen == []
    assert again.search["resumed"] == 8
    assert again.search["best"] == parallel.search["best"]


@pytest.mark.parametrize("parallel", [False, True])
def test_failing_trials_do_not_spoil_the_search(ray_cluster, base, tmp_path, parallel):
    record, seen = searched(
        base, tmp_path, "some", parallel=parallel, axes={"train.lr": (1e30, 1e-2), "train.clip": (0.0,)}
    )
    assert [(one.status, "diverged" in one.reason) for one in sorted(seen, key=lambda one: one.status)] == [
        ("failed", True),
        ("ok", False),
    ]
    assert record.search["failed"] == 1


def test_search_without_any_success_says_the_reasons(base, tmp_path):
    with pytest.raises(SP500Error, match=r"all 2 trials failed(.|\n)*diverged"):
        searched(base, tmp_path, "none", parallel=False, axes={"train.lr": (1e30, 1e31), "train.clip": (0.0,)})
