"""Optimisers: torch's own to the last bit, by name, with their state in checkpoints, whole and split."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import run_group
from torch import Tensor, nn

from sp500.config import ModelConfig, RunConfig, TrainConfig, optimizers
from sp500.errors import ConfigError
from sp500.tasks import synthetic
from sp500.tasks.settings import SyntheticConfig
from sp500.training import optimizer
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import fit
from sp500.training.optimizer import CLASSES, Optimizers
from sp500.training.step import lr_factor, one_cycle
from sp500.training.worker import GroupWorker, SoloWorker, Worker

CPU = torch.device("cpu")
OPTIONS = {"sgd": {"momentum": 0.9, "nesterov": True}, "rmsprop": {"momentum": 0.5, "centered": True}}
NAMES = sorted(CLASSES)


def settings(name: str, **train: object) -> RunConfig:
    changed = {"optimizer": name, "optimizer_options": OPTIONS.get(name, {}), "lr": 0.01, "dtype": "float64"}
    changed |= {"epochs": 2, "batch_size": 50, "weight_decay": 0.1, "checkpoint_steps": 5, **train}
    sizes = SyntheticConfig(samples=400, features=6)
    return RunConfig(
        task="synthetic",
        synthetic=sizes,
        model=ModelConfig(kind="mlp", hidden=8, dropout=0.0),
        train=TrainConfig.model_validate(changed),
    )


def after_steps(name: str, dtype: torch.dtype, kind: str) -> list[Tensor]:
    """Weights after 20 steps of torch's optimiser, or of ours, also put together again after 10 of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)
    config = settings(name)
    fused = {"fused": True} if name == "adamw" else {}
    torchs = partial(CLASSES[name], lr=0.01, weight_decay=0.1, **OPTIONS.get(name, {}), **fused)
    make = (lambda: torchs(model.parameters())) if kind == "torch" else (lambda: optimizer.build(model, config))
    steps = Optimizers({"main": make()}, own=False)
    x, y = torch.randn(20, 5, dtype=dtype), torch.randn(20, 1, dtype=dtype)
    for number in range(20):
        if kind == "reloaded" and number == 10:
            state, steps = (
                {key: value.clone() for key, value in steps.dump().items()},
                Optimizers({"main": make()}, own=False),
            )
            steps.load(state)
        steps["main"].zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        steps["main"].step()
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["straight", "reloaded"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_equal_those_of_torch_to_the_bit(name, dtype, kind):
    ours, torchs = after_steps(name, dtype, kind), after_steps(name, dtype, "torch")
    assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))


def test_options_are_those_of_torch():
    places = {"params", "lr", "weight_decay", "foreach", "fused", "capturable", "differentiable", "maximize"}
    torchs = {name: set(inspect.signature(kind).parameters) - places for name, kind in CLASSES.items()}
    assert {name: set(options) for name, options in optimizers.OPTIONS.items()} == torchs


def test_no_optimiser_by_name_loads_a_compiler():
    code = f"""
import sys, torch
from sp500.training.optimizer import lean
for name in {NAMES}:
    weight = torch.nn.Parameter(torch.ones(3, 2))
    steps = lean(name)([weight], lr=0.1)
    weight.grad = torch.ones(3, 2)
    steps.step()
    steps.load_state_dict(steps.state_dict())
    steps.zero_grad()
sys.exit(any(name.startswith("torch._dynamo") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("train", "fault"),
    [
        ({"optimizer": "lbfgs"}, "computes the loss several times"),
        ({"optimizer": "lion"}, "expected one of adamw, .*may return it from `optimizer"),
        ({"optimizer": "sgd", "optimizer_options": {"betas": (0.9, 0.9)}}, "betas is not an option of sgd"),
        ({"optimizer": "adam", "optimizer_options": {"betas": 0.9}}, "expected two numbers"),
        ({"optimizer": "sgd", "optimizer_options": {"nesterov": True}}, "needs a momentum above 0"),
        ({"optimizer_options": {"lr": 0.1}}, "set train.lr"),
    ],
)
def test_what_is_no_optimiser_or_no_option_is_refused(train, fault):
    with pytest.raises(ValueError, match=fault):
        TrainConfig.model_validate(train)


def test_a_value_that_torch_refuses_is_an_error_of_the_settings():
    with pytest.raises(ConfigError, match=r"train.optimizer rmsprop: Invalid alpha"):
        optimizer.build(nn.Linear(2, 1), settings("rmsprop", optimizer_options={"alpha": -1.0}))


@pytest.mark.parametrize(("name", "warmup"), [("sgd", 0.0), ("adam", 0.2)])
def test_one_cycle_is_that_of_torch(name, warmup):
    other = CLASSES[name]([nn.Parameter(torch.zeros(1))], lr=0.02)
    torchs = torch.optim.lr_scheduler.OneCycleLR(other, max_lr=0.02, total_steps=40, pct_start=warmup or 0.3)
    ours = Optimizers({"main": CLASSES[name]([nn.Parameter(torch.zeros(1))], lr=0.02)}, own=False)
    train = TrainConfig(schedule="onecycle", warmup=warmup)
    for step in range(40):
        ours.scale_rates(lr_factor(train, step, 40))
        ours.set_momentum(one_cycle(train, step, 40, (0.95, 0.85, 0.95)))
        [group], [expected] = ours["main"].param_groups, other.param_groups
        momentum = [of["betas"][0] if "betas" in of else of["momentum"] for of in (group, expected)]
        assert [group["lr"], momentum[0]] == pytest.approx([expected["lr"], momentum[1]], rel=1e-12)
        other.step()
        if step < 39:
            torchs.step()
    assert one_cycle(train, 0, 1, (0.95, 0.85, 0.95)) > 0


# In checkpoints.


@dataclass(frozen=True)
class Counting(synthetic.Synthetic):
    """A task with an optimiser of its own, or with two."""

    kind: str = "one"

    def optimizer(self, model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
        return Growing(model.parameters(), self.kind)

    def optimizers(self, model: nn.Module, config: RunConfig) -> dict[str, torch.optim.Optimizer]:
        if self.kind != "two":
            return super().optimizers(model, config)
        first, *others = model.parameters()
        return {"first": torch.optim.SGD([first], lr=0.1, momentum=0.9), "rest": Growing(others)}

    def lr_factor(self, step: int, steps: int) -> float:
        return 1 - step / steps


class Growing(torch.optim.Optimizer):
    """Steps that grow with a count in the group and a number in the state, as in optimisers of users."""

    def __init__(self, parameters: object, kind: str = "one") -> None:
        super().__init__(parameters, {"lr": 0.01, "count": 0, "scale": (1.0, float("inf"))})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"]:
                state = self.state[weight]
                state["growth"] = state.get("growth", 0.0) + 0.1
                state["mean"] = state.get("mean", torch.zeros_like(weight)).lerp(weight.grad, 0.1)
                if self.kind == "odd":
                    state["history"] = [weight]
                weight.sub_(group["lr"] * state["growth"] * group["count"] * state["mean"])


def train(task: synthetic.Synthetic, worker: Worker, folder: Path) -> dict[str, Tensor]:
    """Weights after training to the end, from the last checkpoint if there is one."""
    checkpoints = Checkpoints(folder, "optimizer", form=task.config.train.checkpoint)
    fit(task, task.prepare(task.config), task.config, worker, checkpoints)
    return {} if worker.splits else last(checkpoints)


def last(checkpoints: Checkpoints) -> dict[str, Tensor]:
    found = checkpoints.resume()
    assert found
    return found[0].model


def forget_the_end(folder: Path) -> None:
    """Leave a checkpoint of step 10, inside the second epoch of six steps each."""
    shutil.rmtree(folder / "epoch-00002")


@pytest.mark.parametrize("kind", [*NAMES, "one", "two"])
def test_resumed_training_ends_in_the_same_bits(kind, tmp_path):
    config = settings(kind if kind in NAMES else "adamw")
    task = Counting(config, kind=kind) if kind not in NAMES else synthetic.Synthetic(config)
    straight = train(task, SoloWorker(CPU), tmp_path)
    forget_the_end(tmp_path)
    resumed = train(task, SoloWorker(CPU), tmp_path)
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_a_state_that_no_checkpoint_can_keep_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"state has history, a list"):
        train(Counting(settings("adamw"), kind="odd"), SoloWorker(CPU), tmp_path)


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    for name, form in product(NAMES, ("whole", "sharded")):
        task = synthetic.Synthetic(settings(name, parallel="fsdp", checkpoint=form))
        for _ in range(2):  # the second time from the middle of the second epoch
            run = folder / f"{name}-{form}"
            dist.barrier()
            if rank == 0 and run.exists():
                forget_the_end(run)
            dist.barrier()
            train(task, GroupWorker(rank, 2, CPU), run)
    dist.destroy_process_group()


def test_fsdp_on_two_ranks_resumed_equals_one_process(tmp_path):
    run_group(2, train_as_rank, tmp_path)
    for name, form in product(NAMES, ("whole", "sharded")):
        expected = train(synthetic.Synthetic(settings(name)), SoloWorker(CPU), tmp_path / name)
        found = last(Checkpoints(tmp_path / f"{name}-{form}", "optimizer"))
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-9, msg=f"{name} {form} {key}")
