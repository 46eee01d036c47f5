"""One step: schedules, weight decay, micro-batches, masks, mixed precision, recomputed activations, compiled models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sp500.config import RunConfig, TrainConfig
from sp500.data.batches import Batches, parts
from sp500.data.windows import MASKED, Dataset, Windows
from sp500.errors import ConfigError, DataError, SP500Error
from sp500.models import stack
from sp500.models.gpt import GPT, Block
from sp500.tasks import catalog, language
from sp500.training import evaluation
from sp500.training.checkpoint import Checkpoints, Snapshot
from sp500.training.loop import FitResult, fit
from sp500.training.optimizer import groups
from sp500.training.step import Stepper, lr_factor
from sp500.training.worker import SoloWorker, Worker

MakeDataset = Callable[..., Dataset]
CPU = torch.device("cpu")
TINY = {"kind": "gpt", "hidden": 16, "layers": 3, "heads": 2, "dropout": 0.1}


def settings(**train: object) -> RunConfig:
    defaults = {"epochs": 2, "batch_size": 16, "lr": 0.01, "max_steps": 12, "dtype": "float64"}
    text = {"max_bytes": 6_000, "context": 16}
    return RunConfig.model_validate({"task": "language", "text": text, "model": TINY, "train": {**defaults, **train}})


@pytest.fixture(scope="module")
def text() -> Dataset:
    return catalog.task(settings()).prepare(settings())


def trained(text: Dataset, folder: Path, **train: object) -> tuple[FitResult, dict[str, Tensor]]:
    config = settings(**train)
    checkpoints = Checkpoints(folder, "step")
    result = fit(catalog.task(config), text, config, SoloWorker(CPU), checkpoints)
    found = checkpoints.resume()
    assert found is not None
    return result, found[0].model


# Schedules.


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "wsd"])
def test_rate_rises_to_its_highest_and_ends_where_it_should(schedule):
    end = 0.0 if schedule == "constant" else 0.25
    train = TrainConfig.model_validate({"schedule": schedule, "warmup": 0.1, "lr_end": end})
    rates = [lr_factor(train, step, 100) for step in range(100)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert max(rates) == rates[10] == 1.0
    assert all(later <= earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.25)
    middle = {"constant": 1.0, "cosine": 0.625, "linear": 0.625, "wsd": 1.0}[schedule]
    assert np.interp(54.5, range(100), rates) == pytest.approx(middle, abs=1e-6)


def test_cosine_is_that_of_torch():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=49, eta_min=0.1)
    train = TrainConfig(schedule="cosine", lr_end=0.1)
    for step in range(50):
        assert lr_factor(train, step, 50) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        scheduler.step()


def test_warm_up_is_not_rounded_up_by_its_last_bit_and_one_step_alone_takes_the_whole_rate():
    assert lr_factor(TrainConfig(warmup=0.07), 6, 100) == 1.0  # 0.07 * 100 is 7.000000000000001
    assert lr_factor(TrainConfig(schedule="linear"), 0, 1) == 1.0
    assert lr_factor(TrainConfig(schedule="linear", warmup=0.5), 0, 1) == 1.0


def test_loop_gives_each_step_its_rate(text, monkeypatch):
    rates = list[float]()
    take = Stepper.take

    def noted(self: Stepper, batch: object, step: int) -> Tensor:
        found = take(self, batch, step)
        rates.append(self.optimizers["main"].param_groups[0]["lr"])
        return found

    monkeypatch.setattr(Stepper, "take", noted)
    config = settings(schedule="linear", warmup=0.25)
    fit(catalog.task(config), text, config, SoloWorker(CPU))
    np.testing.assert_allclose(rates, [0.01 * lr_factor(config.train, step, 12) for step in range(12)])
    assert rates[-1] == 0.0


# Weight decay.


def test_matrices_alone_decay_where_asked(text):
    parameters = list(catalog.task(settings()).model(settings(), text).parameters())
    [every] = groups(parameters, TrainConfig())
    assert len(every["params"]) == len(parameters)
    matrices, others = groups(parameters, TrainConfig(decay="matrices", weight_decay=0.1))
    assert {parameter.ndim for parameter in matrices["params"]} == {2}
    assert {parameter.ndim for parameter in others["params"]} == {1}
    assert (others["weight_decay"], "weight_decay" in matrices) == (0.0, False)


# Micro-batches and masks.


def windows(count: int) -> Windows:
    rows = np.arange(count * 2, dtype=np.float64)[:, None]
    return Windows(rows, np.arange(count) * 2, np.arange(count, dtype=np.int64), 2)


@pytest.mark.parametrize("most", [0, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_parts_hold_every_window_once_and_are_as_many_on_every_rank(most, world):
    ranks = [Batches(windows(10), CPU, rank=rank, world=world) for rank in range(world)]
    cut = [parts(next(iter(rank.in_order(10))), most) for rank in ranks]
    assert len({len(one) for one in cut}) == 1
    counted = [number for one in cut for part in one if part.count for number in part.windows.tolist()]
    assert sorted(counted) == list(range(10))
    assert all(len(part.x) == max(part.count, 1) for one in cut for part in one)
    assert all(part.count <= (most or 10) and (part.total, part.targets) == (10, 10) for one in cut for part in one)


def test_masked_targets_are_not_counted():
    made = windows(4)
    targets = np.array([[1, MASKED], [2, 3], [MASKED, MASKED], [4, MASKED]])
    batches = Batches(replace(made, targets=targets), CPU)
    assert batches.targets == 4
    assert [batch.targets for batch in batches.in_order(2)] == [3, 1]


def test_mean_of_means_would_be_another_gradient(text, tmp_path):
    """A window with one target counts an eighth of a window with eight, not as much."""
    keep = np.where(np.arange(len(text.train))[:, None] % 2, 16, 1) > np.arange(16)
    ragged = np.where(keep, text.train.targets.astype(np.int64), MASKED)
    masked = replace(text, train=replace(text.train, targets=ragged))
    whole, weights = trained(masked, tmp_path / "whole")
    cut, others = trained(masked, tmp_path / "cut", micro_batch=1)
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=0, atol=1e-9)
    assert cut.epochs[0].train_loss == pytest.approx(whole.epochs[0].train_loss, abs=1e-9)


def test_micro_batches_bound_what_is_computed_at_once(text, tmp_path, monkeypatch):
    sizes, forward = list[int](), GPT.forward

    def noted(self: GPT, x: Tensor) -> Tensor:
        if self.training:
            sizes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(GPT, "forward", noted)
    trained(text, tmp_path, micro_batch=5, max_steps=2)
    assert sizes == [5, 5, 5, 1] * 2


def test_evaluation_takes_no_more_windows_where_few_targets_count(text):
    targets = np.where(np.arange(16) < 1, text.train.targets.astype(np.int64), MASKED)
    few = Batches(replace(text.train, targets=targets), CPU)
    every = Batches(text.train, CPU)
    assert evaluation.windows_at_once(few, 16) == evaluation.windows_at_once(every, 16) == 256


def test_validation_in_which_nothing_counts_is_refused(text):
    assert text.valid is not None
    empty = replace(text.valid, targets=np.full(text.valid.targets.shape, MASKED, np.int64))
    with pytest.raises(DataError, match="validation part"):
        fit(catalog.task(settings()), replace(text, valid=empty), settings(), SoloWorker(CPU))


def test_scores_of_a_text_are_per_target_that_counts():
    made = replace(windows(2), targets=np.array([[1, MASKED], [MASKED, MASKED]]))
    found = language.scores(np.array([[2.0], [0.0]]), made)
    assert (found["loss"], found["bytes"]) == (2.0, 1)


# Recomputed activations, mixed precision, compiled models.


def test_stacked_layers_are_those_that_repeat(text):
    model = catalog.task(settings()).model(settings(), text)
    assert [type(layer) for layer in stack.find_layers(model)] == [Block] * 3
    assert stack.find_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(4)]
    assert stack.find_layers(nn.Sequential(*blocks)) == blocks
    stages = nn.ModuleList([nn.Sequential(*blocks[:2]), nn.Sequential(*blocks[2:])])
    assert stack.find_layers(stages) == blocks
    shared = nn.ModuleDict({"first": blocks[0], "again": blocks[0], "other": blocks[1]})
    assert stack.find_layers(shared) == blocks[:2]


def test_recomputed_activations_give_the_same_weights(text, tmp_path, monkeypatch):
    calls, forward = list[bool](), Block.forward

    def noted(self: Block, x: Tensor) -> Tensor:
        calls.append(self.training)
        return forward(self, x)

    monkeypatch.setattr(Block, "forward", noted)
    _, plain = trained(text, tmp_path / "plain")
    once = sum(calls)
    calls.clear()
    _, again = trained(text, tmp_path / "again", recompute=True)
    assert sum(calls) == 2 * once
    for name, value in plain.items():
        np.testing.assert_allclose(again[name], value, rtol=0, atol=1e-12)


def test_recompute_refuses_batch_normalisation_and_warns_where_nothing_repeats(caplog):
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    with pytest.raises(ConfigError, match="batch normalisation"):
        stack.recompute(nn.Sequential(*blocks))
    stack.recompute(nn.Linear(2, 2))
    assert "changes nothing" in caplog.text


def test_mixed_precision_keeps_weights_and_evaluation_in_float32(text, tmp_path):
    plain, _ = trained(text, tmp_path / "plain", dtype="float32")
    mixed, weights = trained(text, tmp_path / "mixed", dtype="float32", amp="bfloat16")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert mixed.outputs["test"].dtype == np.float32
    assert mixed.epochs[0].train_loss != plain.epochs[0].train_loss
    assert mixed.best_loss == pytest.approx(plain.best_loss, rel=0.02)


@pytest.mark.slow
def test_compiled_model_trains_to_the_same_loss(tmp_path):
    # In a process of its own: the compiler cannot read what checks the tests' types.
    script = [str(Path(__file__).parents[2] / "experiments" / "train.py"), "--task", "synthetic"]
    script += ["--model.layers", "1", "--train.max-steps", "3", "--train.dtype", "float64", "--runs-dir", str(tmp_path)]
    # One compiler at a time, and none to try vector instructions or for headers of which few kernels make use.
    inductor = {"COMPILE_THREADS": "1", "VEC_ISA_OK": "1", "CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    environment = os.environ | {f"TORCHINDUCTOR_{name}": value for name, value in inductor.items()}
    found = []
    for name, more in (("plain", []), ("compiled", ["--train.compile", "--train.micro-batch", "20"])):
        done = forks.run([*script, "--name", name, *more], env=environment)
        assert done.returncode == 0, done.stderr
        found.append(json.loads((tmp_path / name / "record.json").read_text())["best_loss"])
    assert found[1] == pytest.approx(found[0], abs=1e-9)


# Checkpoints inside an epoch.


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


def interruptible(**train: object) -> RunConfig:
    """Of five steps an epoch, with a checkpoint after every second step."""
    model = {"kind": "mlp", "hidden": 8, "layers": 1, "dropout": 0.2}
    return RunConfig.model_validate({"model": model, "train": {"batch_size": 20, "checkpoint_steps": 2, **train}})


@pytest.mark.parametrize("stop", [1, 4, 7, 9])
@pytest.mark.parametrize("validated", [True, False])
def test_run_interrupted_inside_an_epoch_resumes_to_the_same_bits(
    linear_dataset, tmp_path, monkeypatch, stop, validated
):
    config = interruptible(epochs=2, schedule="cosine", warmup=0.2)
    dataset = linear_dataset() if validated else replace(linear_dataset(), valid=None)
    whole = fit(catalog.task(config), dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "whole", "a"))
    take = Stepper.take

    def interrupted(self: Stepper, batch: object, step: int) -> Tensor:
        if step == stop:
            raise Interrupted
        return take(self, batch, step)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "take", interrupted)
        with pytest.raises(Interrupted):
            fit(catalog.task(config), dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "cut", "a"))
    resumed = fit(catalog.task(config), dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "cut", "a"))
    losses = [[(epoch.train_loss, epoch.valid_loss) for epoch in result.epochs] for result in (resumed, whole)]
    assert losses[0] == losses[1]
    assert resumed.samples == whole.samples
    assert resumed.outputs["test"].tobytes() == whole.outputs["test"].tobytes()
    folders = [tmp_path / name / "last" / "model.safetensors" for name in ("whole", "cut")]
    assert folders[0].read_bytes() == folders[1].read_bytes()


@pytest.mark.parametrize("steps", [4, 8])  # the end of the first epoch's part, and of the second's
@pytest.mark.parametrize("validated", [True, False])
def test_run_killed_between_its_last_step_and_its_validation_ends_that_epoch(
    linear_dataset, tmp_path, monkeypatch, steps, validated
):
    config = interruptible(epochs=3, max_steps=steps)
    dataset = linear_dataset() if validated else replace(linear_dataset(), valid=None)
    task = catalog.task(config)
    whole = fit(task, dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "whole", "a"))
    save, saved = Checkpoints.save, list[int]()

    def save_and_end(self: Checkpoints, snapshot: Snapshot, worker: Worker) -> None:
        save(self, snapshot, worker)
        if snapshot.progress["step"] == steps and snapshot.progress["partial"]:
            saved.append(steps)
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_end)
        with pytest.raises(Interrupted):
            fit(task, dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "cut", "a"))
    resumed = fit(task, dataset, config, SoloWorker(CPU), Checkpoints(tmp_path / "cut", "a"))
    assert saved == [steps]
    assert [epoch.train_loss for epoch in resumed.epochs] == [epoch.train_loss for epoch in whole.epochs]
    assert resumed.outputs["test"].tobytes() == whole.outputs["test"].tobytes()


def test_epoch_that_diverges_leaves_no_checkpoint_of_it(linear_dataset, tmp_path):
    train = {"batch_size": 20, "checkpoint_steps": 1, "lr": 1e30, "clip": 0.0}
    config = RunConfig.model_validate({"model": {"kind": "mlp", "hidden": 8}, "train": train})
    with pytest.raises(SP500Error, match="not finite"):
        fit(catalog.task(config), linear_dataset(), config, SoloWorker(CPU), Checkpoints(tmp_path, "a"))
    for manifest in tmp_path.glob("epoch-*/manifest.json"):
        assert "NaN" not in manifest.read_text()
