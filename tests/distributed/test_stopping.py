"""A stopper on every arm and for every model: the values of training alone, and one rule for all decisions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.data.text.settings import TextConfig
from sp500.distributed import session
from sp500.runs import compare
from sp500.runs.store import RunStore
from sp500.runs.trials import Ledger
from sp500.studies import search_steps
from sp500.tuning import sequential, trial_data
from sp500.tuning.axes import choices
from sp500.tuning.limits import Limits, Plan
from sp500.tuning.sequential import STATES
from sp500.tuning.space import grid
from sp500.tuning.stopper import StopRule

EPOCHS, RUNGS = 5, (1, 3)
AXES = {"train.lr": (1e-1, 1e-2, 1e-3), "train.seed": (0, 1)}
LIMITS = Limits(pack="off", stop=StopRule("asha", 1))
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(dataset.train.length * dataset.features, 8), nn.Tanh())
        self.head = nn.Linear(8, dataset.outputs)

    def forward(self, x):
        return self.head(self.layers(x))
"""


def settings(kind: str, folder: Path) -> RunConfig:
    train = TrainConfig(epochs=EPOCHS, batch_size=64, early_stop_patience=0)
    if kind == "cnn":
        return RunConfig(task="images", model=ModelConfig(kind=kind, hidden=4, dropout=0.1), train=train)
    if kind == "gpt":
        text = TextConfig(max_bytes=8_000, context=16)
        return RunConfig(task="language", text=text, model=ModelConfig(kind=kind, hidden=8), train=train)
    data = DataConfig(tickers=("AAPL",), start="2019-01-01", window=5)
    if kind == "own":
        (folder / "net.py").write_text(NET)
        return RunConfig(data=data, model=ModelConfig(kind=f"{folder}/net.py:Net"), train=train)
    return RunConfig(data=data, model=ModelConfig(kind=kind, hidden=8, dropout=0.2), train=train)


def searched(base: RunConfig, folder: Path, arm: str, limits: Limits = LIMITS) -> Ledger:
    plan = Plan(choices("test", AXES), "grid", 6, arm, limits)
    ray = session.start_in_background() if arm == "ray" else nullcontext()
    with RunStore(folder).open(arm) as run, ray as background:
        resolved, data = search_steps.prepare(base, plan)
        with search_steps.choose_arm(plan, resolved, run, data, background) as chosen:
            search_steps.run_trials(chosen, resolved, run, plan, data)
        assert not (run.path / STATES).exists()
        return Ledger(run.path)


@pytest.mark.parametrize("kind", ["mlp", "lstm", "cnn", "gpt", "own"])
def test_every_arm_stops_by_one_rule_at_the_values_of_training_alone(ray_cluster, tmp_path, kind):
    base = settings(kind, tmp_path)
    data = trial_data.prepare([base])[trial_data.key(base)]
    alone = {trial.id: sequential.fit_alone(data, trial) for trial in grid(base, AXES)}
    for arm in compare.ARMS:
        ledger = searched(base, tmp_path / "runs", arm)
        assert ledger.results.keys() == alone.keys()
        stopper = StopRule("asha", 1).make()
        for row in ledger.decisions:
            best = min(epoch.valid_loss for epoch in alone[row.trial].epochs[: row.rung])
            assert row.value == best / data.naive_loss
            assert stopper.decide(row.trial, row.rung, row.value) == row.goes_on
        ended = {row.trial: row.rung for row in ledger.decisions if not row.goes_on}
        assert ended
        for name, result in ledger.results.items():
            assert result.stopped == ended.get(name)
            assert result.epochs == ended.get(name, EPOCHS)
            losses = [epoch.valid_loss for epoch in alone[name].epochs[: result.epochs]]
            untrained = [] if kind == "own" else [alone[name].untrained_loss]
            assert result.valid_loss == min(losses + untrained)
        reports = [(row.trial, row.rung) for row in ledger.decisions]
        assert len(set(reports)) == len(reports)
        assert {rung for _, rung in reports} == set(RUNGS)


def test_diverged_trial_fails_and_the_others_are_stopped_without_it(tmp_path):
    base = settings("lstm", tmp_path)
    axes = {"train.lr": (1e-3, 1e-2, 1e-1), "train.seed": (0,), "train.clip": (0.0,), "train.weight_decay": (0.0, 1e30)}
    plan = Plan(choices("test", axes), "grid", 6, "sequential", LIMITS)
    with RunStore(tmp_path).open("s") as run:
        resolved, data = search_steps.prepare(base, plan)
        with search_steps.choose_arm(plan, resolved, run, data, None) as arm:
            ledger = search_steps.run_trials(arm, resolved, run, plan, data).ledger
    failed = {name for name, result in ledger.results.items() if result.status == "failed"}
    assert len(failed) == 3
    assert failed.isdisjoint(row.trial for row in ledger.decisions)
    assert all(math.isfinite(row.value) for row in ledger.decisions)
