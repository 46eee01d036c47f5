"""A member of a pack ends as it would alone."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.errors import ConfigError
from sp500.studies import search
from sp500.studies.settings import SearchSettings
from sp500.tuning import space, trial_data
from sp500.tuning.limits import Limits
from sp500.tuning.packing import scheduler
from sp500.tuning.packing.batch_model import MemberAdamW
from sp500.tuning.packing.batch_trainer import BatchTrainer
from sp500.tuning.sequential import run_trial

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        self.layer = nn.Linear(dataset.features * dataset.window, 1)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""
DATA = DataConfig(tickers=("AAPL",), start="2017-01-01", window=4)


PREPARED: dict[object, trial_data.TrialData] = {}


def made_of(base: RunConfig) -> trial_data.TrialData:
    key = trial_data.key(base)
    if key not in PREPARED:
        PREPARED.update(trial_data.prepare([base]))
    return PREPARED[key]


def compared(base, overrides):
    """Result of each config alone and packed."""
    made = made_of(base)
    trials = [space.trial(base, one) for one in overrides]
    packed = {result.id: result for results in BatchTrainer(made, trials).run() for result in results}
    return [(run_trial(made, trial), packed[trial.id]) for trial in trials]


member = st.fixed_dictionaries(
    {
        "train.lr": st.sampled_from([1e-3, 1e-2]) | st.floats(1e-4, 3e-2),
        "train.weight_decay": st.sampled_from([0.0, 0.1]),
        "train.clip": st.sampled_from([0.0, 0.05, 1.0]),
        "train.seed": st.integers(0, 2),
        "train.early_stop_patience": st.sampled_from([0, 1]),
        "train.epochs": st.integers(1, 4),
    }
)
models = st.builds(ModelConfig, kind=st.just("linear")) | st.builds(
    ModelConfig, kind=st.just("mlp"), hidden=st.integers(1, 9), layers=st.integers(1, 3)
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=models,
    members=st.lists(member, min_size=1, max_size=6, unique_by=str),
    dropouts=st.lists(st.sampled_from([0.0, 0.2, 0.5]), min_size=6, max_size=6),
    batch=st.sampled_from([64, 200, 10_000]),
)
def test_packed_equals_alone_in_float64(model, members, dropouts, batch):
    base = RunConfig(data=DATA, model=model, train=TrainConfig(dtype="float64", batch_size=batch))
    if model.kind == "mlp":
        members = [one | {"model.dropout": rate} for one, rate in zip(members, dropouts, strict=False)]
    ids = {space.trial(base, one).id: one for one in members}
    for alone, packed in compared(base, list(ids.values())):
        assert (packed.status, packed.epochs, packed.best_epoch, packed.samples) == (
            alone.status,
            alone.epochs,
            alone.best_epoch,
            alone.samples,
        )
        assert packed.valid_loss == pytest.approx(alone.valid_loss, rel=1e-9)
        if alone.valid_excess_sharpe is None:
            assert packed.valid_excess_sharpe is None
        else:
            assert packed.valid_excess_sharpe == pytest.approx(alone.valid_excess_sharpe, rel=1e-6)
        assert packed.naive_loss == alone.naive_loss


def test_packed_is_near_alone_in_float32():
    base = RunConfig(data=DATA, train=TrainConfig(epochs=10))
    overrides = [
        {"train.lr": lr, "model.dropout": rate, "train.seed": seed}
        for lr in (1e-3, 1e-2)
        for rate in (0.0, 0.2)
        for seed in (0, 1, 2)
    ]
    gaps = [abs(packed.valid_loss / alone.valid_loss - 1) for alone, packed in compared(base, overrides)]
    assert np.median(gaps) <= 1e-6


def test_synthetic_classes_pack_too():
    base = RunConfig(task="synthetic", train=TrainConfig(epochs=2, dtype="float64"))
    for alone, packed in compared(base, [{"train.lr": 1e-3}, {"train.lr": 1e-2}]):
        assert packed.valid_loss == pytest.approx(alone.valid_loss, rel=1e-9)


def test_diverging_member_drops_out_alone():
    base = RunConfig(data=DATA, train=TrainConfig(epochs=3, dtype="float64"))
    pairs = compared(base, [{"train.lr": 1e-3}, {"train.lr": 1e200, "train.clip": 0.0}, {"train.lr": 1e-2}])
    assert [packed.status for _, packed in pairs] == ["ok", "failed", "ok"]
    # A pack looks at its losses once per epoch, and does not know the step.
    assert pairs[1][1].reason == pairs[1][0].reason.replace("step 2 of ", "")
    for alone, packed in (pairs[0], pairs[2]):
        assert packed.valid_loss == pytest.approx(alone.valid_loss, rel=1e-9)


def test_halving_lets_the_best_go_on():
    base = RunConfig(data=DATA, train=TrainConfig(epochs=9, early_stop_patience=0))
    made = made_of(base)
    trials = [space.trial(base, {"train.seed": seed}) for seed in range(9)]
    results = [one for ended in BatchTrainer(made, trials, halving=3).run() for one in ended]
    assert sorted(one.epochs for one in results) == [1] * 6 + [3] * 2 + [9]
    after = {}
    for result in results:
        after.setdefault(result.epochs, []).append(result.valid_loss)
    first = {trial.id: run_trial(made, space.trial(base, trial.overrides | {"train.epochs": 1})) for trial in trials}
    stopped = {one.id for one in results if one.epochs == 1}
    losses = {name: one.valid_loss for name, one in first.items()}
    assert max(loss for name, loss in losses.items() if name not in stopped) <= min(losses[name] for name in stopped)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a ring within a garbage collection
def test_member_that_goes_on_for_too_long_is_a_failure_and_the_others_are_not():
    base = RunConfig(data=DATA, train=TrainConfig(epochs=2, early_stop_patience=0))
    made = made_of(base)
    trials = [space.trial(base, {"train.epochs": count}) for count in (2, 3, 1_000_000)]
    ended = [one for results in scheduler.run_pack(made, trials, timeout=4.0) for one in results]
    results = {one.overrides["train.epochs"]: one for one in ended}
    assert [results[count].status for count in (2, 3, 1_000_000)] == ["ok", "ok", "failed"]
    assert "longer than 4 s" in results[1_000_000].reason


def test_packs_hold_what_differs_in_values_alone_and_every_trial_once():
    base = RunConfig(train=TrainConfig(batch_size=256))
    trials = space.grid(base, space.PRESETS["grid108"]())
    found = scheduler.split_into_packs(trials, "auto")
    assert sorted(one.id for pack in found for one in pack) == sorted(one.id for one in trials)
    for pack in found:
        assert len({one.config.model.hidden for one in pack}) == 1
    assert max(len(pack) for pack in found) <= scheduler.MOST
    assert found[-1][0].config.model.hidden == 32
    assert [len(pack) for pack in scheduler.split_into_packs(trials, "off")] == [1] * 108
    assert all(len(pack) <= 5 for pack in scheduler.split_into_packs(trials, 5))
    assert len(scheduler.split_into_packs(trials, 5)) == 3 * math.ceil(36 / 5)


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 16, 1000])
def test_packs_of_a_halving_search_do_not_depend_on_the_cores(slots):
    trials = space.grid(RunConfig(), space.PRESETS["grid18"]())
    several = scheduler.split_into_packs(trials, "auto", Limits(halving=3).spread(slots))
    assert [len(pack) for pack in several] == [6, 6, 6]  # one per width
    assert len(scheduler.split_into_packs(trials, "auto", Limits().spread(slots))) >= min(slots, 3)


def halving_search(**changes):
    io = {"save_dir": Path("none")}
    return SearchSettings(**{"halving": 3, "method": "grid", "space": "grid18", "io": io} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"space": "lstm12"},
        {"model": {"kind": "transformer"}},
        {"task": "images", "model": {"kind": "cnn"}},
        {"train": {"amp": "bfloat16"}},
        {"method": "tpe", "trials": 8, "space": "lstm12"},
    ],
)
def test_halving_of_configs_that_train_alone_is_refused_by_the_space(changes):
    with pytest.raises(ConfigError, match="no two configs of space"):
        search.plan(halving_search(**changes))


def test_halving_of_a_model_of_the_users_is_refused(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    with pytest.raises(ConfigError, match="no two configs of space grid18"):
        search.plan(halving_search(model={"kind": f"{tmp_path}/net.py:Net"}))


def test_halving_of_a_mixed_space_names_the_kinds_that_are_never_stopped():
    config = halving_search(space="wide", method="random", trials=60)
    said = search.list_alone(search.plan(config), config.run_config())
    assert "of 60 configs (lstm, mlp, transformer) train alone" in said or "(lstm, transformer) train alone" in said
    assert search.list_alone(search.plan(halving_search()), RunConfig()) == ""


def test_recurrent_models_do_not_pack():
    trials = space.grid(RunConfig(), space.PRESETS["lstm12"]())
    assert [len(pack) for pack in scheduler.split_into_packs(trials, "auto")] == [1] * 12


@pytest.mark.parametrize(
    "train", [{"schedule": "cosine"}, {"warmup": 0.1}, {"decay": "matrices"}, {"amp": "bfloat16"}], ids=str
)
def test_configs_that_a_pack_would_train_otherwise_do_not_pack(train):
    assert scheduler.can_pack(RunConfig())
    assert not scheduler.can_pack(RunConfig(train=TrainConfig(**train)))


SETTINGS = [(1e-3, 0.0), (1e-3, 0.0), (1e-2, 0.1), (3e-2, 0.0)]


def alone(tensor, gradients, settings):
    lr, decay = settings
    parameter = tensor.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=lr, weight_decay=decay, fused=True)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [1, 3], [2]])
def test_members_equal_torchs_optimiser_alone_also_after_some_have_left(dtype, kept):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    start = [draw(4, 5, 3), draw(4, 1, 3)]
    gradients = [[draw(*tensor.shape) for tensor in start] for _ in range(6)]
    tensors = [tensor.clone() for tensor in start]
    optimizer = MemberAdamW(tensors, SETTINGS)
    for step, made in enumerate(gradients):
        if step == 3:
            tensors = [tensor[kept] for tensor in tensors]
            optimizer.keep(tensors, kept)
        optimizer.step([gradient if step < 3 else gradient[kept] for gradient in made])
    for place, tensor in enumerate(tensors):
        for row, member in enumerate(kept):
            seen = [made[place][member] for made in gradients]
            torch.testing.assert_close(tensor[row], alone(start[place][member], seen, SETTINGS[member]), rtol=0, atol=0)
