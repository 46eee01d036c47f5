"""The search in each arm: the same trials, the same numbers."""

from contextlib import nullcontext

import psutil
import pytest
import ray

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.distributed import session
from sp500.errors import SP500Error
from sp500.runs import compare
from sp500.runs.store import RunStore
from sp500.runs.trials import Ledger
from sp500.studies import search_steps
from sp500.tasks.settings import SyntheticConfig
from sp500.tuning.axes import Space, choices
from sp500.tuning.limits import Limits, Plan
from sp500.tuning.space import PRESETS

AXES = {"model.hidden": (4, 8), "train.lr": (1e-3, 1e-2), "model.dropout": (0.0, 0.5)}


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=256, features=8),
        train=TrainConfig(epochs=2, early_stop_patience=0),
    )


def searched(base, folder, name, *, arm, axes=AXES, resume=False, method="grid", trials=None, limits=None, then=None):
    seen, cores = [], set()

    def keep(result, running):
        seen.append(result)
        cores.add(chosen.cores)
        if then:
            then(len(seen))

    found = axes if isinstance(axes, Space) else choices("test", axes)
    plan = Plan(found, method, trials or found.size, arm, limits or Limits())
    ray = session.start_in_background() if arm == "ray" else nullcontext()
    with RunStore(folder).open(name, resume=resume) as run, ray as background:
        _, data = search_steps.prepare(base, plan)
        with search_steps.choose_arm(plan, base, run, data, background) as chosen:
            found = search_steps.run_trials(chosen, base, run, plan, data, on_result=keep)
        assert cores <= {chosen.cores}
        return search_steps.train_best(base, run, plan, data, found), seen


@pytest.fixture(scope="module")
def arms(ray_cluster, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    return folder, {arm: searched(base, folder, arm, arm=arm)[0] for arm in compare.ARMS}


def test_every_arm_ran_the_same_trials_to_the_same_losses(arms):
    folder, _ = arms
    losses = {arm: {name: one.valid_loss for name, one in Ledger(folder / arm).results.items()} for arm in compare.ARMS}
    assert len(losses["sequential"]) == 8
    for arm in ("packed", "ray"):
        assert losses[arm] == pytest.approx(losses["sequential"], rel=1e-6)


def test_every_arm_chooses_the_same_config_and_judges_it_alike(arms):
    _, records = arms
    shown = compare.searches(records)
    assert shown["configs"] == 8
    assert shown["same_best"] is True
    assert shown["metric_gap"] <= 1e-6
    assert [records[arm].arm for arm in compare.ARMS] == list(compare.ARMS)
    assert records["packed"].metrics["test"] == records["ray"].metrics["test"] == records["sequential"].metrics["test"]


@pytest.mark.parametrize("arm", compare.ARMS)
def test_finished_trials_are_not_run_again(arms, base, arm):
    folder, records = arms
    again, seen = searched(base, folder, arm, arm=arm, resume=True)
    assert seen == []
    assert again.search["resumed"] == 8
    assert again.search["best"] == records[arm].search["best"]


def test_cluster_that_was_joined_in_a_thread_is_counted_and_goes_on_after_the_search(ray_cluster):
    with session.start_in_background() as background:
        assert background.count_cpus() == ray.cluster_resources()["CPU"]
    assert ray.is_initialized()


def test_failing_trials_do_not_spoil_the_search(base, tmp_path):
    record, seen = searched(
        base, tmp_path, "some", arm="sequential", axes={"train.lr": (1e30, 1e-2), "train.clip": (0.0,)}
    )
    assert [(one.status, "diverged" in one.reason) for one in sorted(seen, key=lambda one: one.status)] == [
        ("failed", True),
        ("ok", False),
    ]
    assert record.search["failed"] == 1


def test_search_without_any_success_says_the_reasons(base, tmp_path):
    with pytest.raises(SP500Error, match=r"all 2 trials failed(.|\n)*diverged"):
        searched(base, tmp_path, "none", arm="sequential", axes={"train.lr": (1e30, 1e31), "train.clip": (0.0,)})


def test_packed_and_unpacked_agree(arms, base, tmp_path):
    folder, _ = arms
    searched(base, tmp_path, "unpacked", arm="ray", limits=Limits(pack="off"))
    packed, unpacked = Ledger(folder / "ray").results, Ledger(tmp_path / "unpacked").results
    assert {one.pack for one in packed.values()} == {4}
    assert {one.pack for one in unpacked.values()} == {1}
    for name, one in packed.items():
        assert one.valid_loss == pytest.approx(unpacked[name].valid_loss, rel=1e-6)
        assert one.valid_excess_sharpe is None  # synthetic classes cannot be traded


@pytest.mark.parametrize("arm", ["packed", "ray"])
def test_bad_trials_are_listed_with_their_reasons_and_the_best_of_the_rest_is_named(ray_cluster, tmp_path, arm):
    # One raises (no data of that window), one diverges, one is too large for the machine, one never ends.
    base = RunConfig(
        data=DataConfig(tickers=("AAPL",), start="2016-01-01"),
        train=TrainConfig(epochs=2, early_stop_patience=0, clip=0.0),
    )
    good = {"data.window": 5, "train.lr": 1e-3, "model.hidden": 8, "train.epochs": 2}
    bad = [
        {"data.window": 100_000},
        {"train.lr": 1e30},
        {"model.hidden": 1_000_000},
        {"train.epochs": 1_000_000},
    ]
    axes = {key: tuple(dict.fromkeys([value, *(one[key] for one in bad if key in one)])) for key, value in good.items()}
    record, seen = searched(base, tmp_path, "bad", arm=arm, axes=axes, limits=Limits(timeout=5.0))
    assert len(seen) == len({one.id for one in seen}) == 16
    by_reason = {
        "too_short": [one for one in seen if one.overrides["data.window"] == 100_000],
        "out of memory": [one for one in seen if one.overrides["model.hidden"] == 1_000_000],
    }
    for reason, ones in by_reason.items():
        assert any(reason in one.reason for one in ones)
    assert {one.status for one in seen if one.overrides["data.window"] == 100_000} == {"failed"}
    alone = {tuple(one.overrides.values()): one for one in seen if one.overrides["data.window"] == 5}
    assert "diverged" in alone[5, 1e30, 8, 2].reason
    assert "longer than 5 s" in alone[5, 1e-3, 8, 1_000_000].reason
    assert alone[5, 1e-3, 8, 2].status == "ok"
    assert record.search["best"]["id"] == alone[5, 1e-3, 8, 2].id
    assert record.search["failed"] == 15


def test_tpe_asks_on_the_results_and_tries_as_many_as_asked_for(ray_cluster, tmp_path):
    base = RunConfig(data=DataConfig(tickers=("AAPL",), start="2016-01-01", window=5), train=TrainConfig(epochs=1))
    record, seen = searched(
        base, tmp_path, "tpe", arm="ray", axes=PRESETS["wide"](), method="tpe", trials=12, limits=Limits()
    )
    assert len({one.id for one in seen}) == record.search["configs"] == 12
    assert record.search["deflated_sharpe"]["trials"] == 12
    best = min(one.valid_loss for one in seen if one.valid_loss is not None)
    assert record.search["best"]["valid_loss"] == best


def test_several_datasets_are_ranked_each_and_overall(base, tmp_path):
    base = RunConfig(data=DataConfig(start="2016-01-01"), model=ModelConfig(kind="linear"), train=TrainConfig(epochs=2))
    axes = {"data.tickers": (("AAPL",), ("KO",)), "data.window": (5, 10), "train.lr": (1e-3, 1e-2)}
    record, seen = searched(base, tmp_path, "many", arm="sequential", axes=axes)
    ranked = record.search["by_dataset"]
    order = dict.fromkeys(one.dataset for one in sorted(seen, key=lambda one: one.score))
    assert [one["dataset"] for one in ranked] == list(order)
    assert {one["dataset"] for one in ranked} == {f"{name}, {days} days" for name in ("AAPL", "KO") for days in (5, 10)}
    assert record.search["best"]["score"] == min(one.score for one in seen)
    assert record.config["data"]["tickers"] == list(record.search["best"]["overrides"]["data.tickers"])


def test_a_trial_can_be_a_run_of_two_workers_that_make_their_data(ray_cluster, base, tmp_path):
    base = base.model_copy(update={"train": base.train.model_copy(update={"dtype": "float64"})})
    axes = {"train.lr": (1e-2,), "model.dropout": (0.0,)}
    _, alone = searched(base, tmp_path, "alone", arm="sequential", axes=axes)
    _, seen = searched(base, tmp_path, "two", arm="ray", axes=axes, limits=Limits(workers=2))
    losses = [{one.id: one.valid_loss for one in ones} for ones in (alone, seen)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def kill_a_pack(count: int) -> None:
    if count == 1:
        packs = [one for one in psutil.Process().children(recursive=True) if "_Trainable" in " ".join(one.cmdline())]
        assert packs
        for process in packs:
            process.kill()


def test_pack_whose_process_dies_is_tried_again_one_by_one(ray_cluster, base, tmp_path):
    # One of each two is done early: its result comes, and the process dies, while the other still trains.
    axes = {"train.lr": (1e-3, 1e-2), "train.epochs": (20, 500)}
    record, seen = searched(base, tmp_path, "killed", arm="ray", axes=axes, then=kill_a_pack)
    assert len({one.id for one in seen}) == len(seen) == 4
    assert {one.status for one in seen} == {"ok"}
    assert {one.pack for one in seen} == {1, 2}
    assert record.search["rerun"] == 0
