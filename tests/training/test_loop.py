"""The loop: it computes what a plain loop would, stops when it should, and resumes to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sp500.config import ModelConfig, RunConfig
from sp500.data.batches import Batches
from sp500.data.windows import Dataset
from sp500.errors import ResourcesError, SP500Error
from sp500.models import catalog as models
from sp500.progress import Meter
from sp500.runs import progress
from sp500.runs.record import EpochMetrics
from sp500.seeding import derive
from sp500.tasks import catalog
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult, fit
from sp500.training.worker import SoloWorker, device

MakeDataset = Callable[..., Dataset]
CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
SMALL = {"kind": "mlp", "hidden": 8, "layers": 1, "dropout": 0.2}

SHAPE = SimpleNamespace(window=3, features=2, outputs=1, row=(2,), naive_output=0.0)


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


def settings(model: dict | None = None, data: dict | None = None, **train: object) -> RunConfig:
    defaults = {"epochs": 4, "batch_size": 20, "lr": 0.01}
    return RunConfig.model_validate(
        {"model": model or {"kind": "linear"}, "data": data or {}, "train": {**defaults, **train}}
    )


def trained(
    dataset: Dataset,
    config: RunConfig,
    folder: Path | None = None,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
) -> FitResult:
    checkpoints = Checkpoints(folder, config.fingerprint) if folder else None
    return fit(catalog.task(config), dataset, config, SoloWorker(CPU, on_epoch), checkpoints)


def interrupt_after(epoch: int) -> Callable[[EpochMetrics], None]:
    def stop(metrics: EpochMetrics) -> None:
        if metrics.epoch == epoch:
            raise Interrupted

    return stop


def losses(result: FitResult) -> list[tuple[int, float, float | None, int]]:
    return [(epoch.epoch, epoch.train_loss, epoch.valid_loss, epoch.samples) for epoch in result.epochs]


def assert_same_bits(first: FitResult, second: FitResult) -> None:
    assert losses(first) == losses(second)
    assert (first.best_epoch, first.best_loss) == (second.best_epoch, second.best_loss)
    assert first.outputs.keys() == second.outputs.keys()
    for name, output in first.outputs.items():
        assert output.tobytes() == second.outputs[name].tobytes()


# What is computed.


def test_linear_model_converges_to_the_least_squares_solution(linear_dataset):
    dataset = replace(linear_dataset(dtype="float64"), valid=None)
    result = trained(dataset, settings(epochs=300, batch_size=96, lr=0.05, clip=0.0, dtype="float64"))
    x, x_test = (np.c_[part.rows.reshape(len(part), -1), np.ones(len(part))] for part in (dataset.train, dataset.test))
    solution = np.linalg.lstsq(x, dataset.train.targets, rcond=None)[0]
    np.testing.assert_allclose(result.outputs["test"][:, 0], x_test @ solution, atol=1e-3)
    assert result.epochs[-1].train_loss == pytest.approx(np.mean((x @ solution - dataset.train.targets) ** 2), rel=1e-3)


def plain_loop(dataset: Dataset, config: RunConfig) -> list[float]:
    """Mean loss of each epoch, and nothing else that `fit` does."""
    torch.manual_seed(derive(config.train.seed, "weights"))
    model = models.build(config.model, SHAPE).to(DTYPES[config.train.dtype])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.train.lr, weight_decay=config.train.weight_decay, foreach=False
    )
    found = []
    for epoch in range(1, config.train.epochs + 1):
        squares = []
        batches = Batches(dataset.train, CPU).epoch(epoch, config.train.batch_size, shuffle=True, seed=config.data.seed)
        for batch in batches:
            error = model(batch.x)[:, 0] - batch.y
            optimizer.zero_grad()
            error.square().mean().backward()
            if config.train.clip:
                nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
            optimizer.step()
            squares += error.detach().square().tolist()
        found.append(float(np.mean(squares)))
    return found


@pytest.mark.parametrize("kind", ["linear", "mlp", "lstm", "transformer"])
@pytest.mark.parametrize("train", [{"clip": 0.0}, {"clip": 0.1}, {"weight_decay": 0.3}, {"batch_size": 96}], ids=str)
def test_training_equals_a_plain_loop(linear_dataset, kind, train):
    size = {} if kind == "linear" else {"hidden": 8, "layers": 1, "dropout": 0.0}
    config, dataset = settings({"kind": kind, **size}, dtype="float64", **train), linear_dataset(dtype="float64")
    result = trained(dataset, config)
    np.testing.assert_allclose([epoch.train_loss for epoch in result.epochs], plain_loop(dataset, config), rtol=1e-9)


def test_loss_of_an_epoch_is_a_mean_over_windows_not_over_batches(linear_dataset):
    # 96 windows in batches of 50 and 46; a rate so small that the weights stay.
    dataset = linear_dataset(dtype="float64")
    found = [
        trained(dataset, settings(epochs=1, batch_size=size, lr=1e-15, dtype="float64")).epochs[0].train_loss
        for size in (96, 50, 7)
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_have_one_row_per_window_in_the_number_type_asked_for(linear_dataset, dtype):
    result = trained(linear_dataset(dtype=dtype), settings(dtype=dtype))
    assert {name: (output.shape, str(output.dtype)) for name, output in result.outputs.items()} == {
        "valid": ((32, 1), dtype),
        "test": ((32, 1), dtype),
    }


def test_training_leaves_its_data_as_it_was(linear_dataset):
    dataset = linear_dataset()
    before = dataset.train.rows.copy(), dataset.train.targets.copy()
    trained(dataset, settings(SMALL))
    np.testing.assert_array_equal(dataset.train.rows, before[0])
    np.testing.assert_array_equal(dataset.train.targets, before[1])


# When it stops, and with which weights.


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_model_that_learns_nothing_of_use_keeps_the_naive_forecast(linear_dataset, kind):
    dataset = linear_dataset(samples=12)
    targets = np.random.default_rng(1).standard_normal(12).astype("float32")
    dataset = replace(dataset, train=replace(dataset.train, targets=targets))
    assert dataset.valid is not None
    unlike = replace(dataset.valid, targets=np.full(len(dataset.valid), 0.25, "float32"))
    dataset = replace(dataset, valid=unlike, naive_output=0.25)
    result = trained(dataset, settings({"kind": kind}, epochs=9, early_stop_patience=3))
    assert (result.best_epoch, result.best_loss, len(result.epochs)) == (0, 0.0, 3)
    assert (result.outputs["test"] == 0.25).all()


def cut_after(epoch: int, dataset: Dataset, config: RunConfig, folder: Path) -> FitResult:
    """The result of a run that was interrupted after this epoch and is resumed."""
    with pytest.raises(Interrupted):
        trained(dataset, config, folder, interrupt_after(epoch))
    return trained(dataset, config, folder)


def test_interrupted_run_that_keeps_the_naive_forecast_resumes_to_it(linear_dataset, tmp_path):
    dataset = linear_dataset()
    assert dataset.valid is not None
    unlike = replace(dataset.valid, targets=np.zeros(len(dataset.valid), "float32"))
    dataset, config = replace(dataset, valid=unlike), settings(SMALL)
    resumed = cut_after(2, dataset, config, tmp_path)
    assert_same_bits(trained(dataset, config), resumed)
    assert resumed.best_epoch == 0


def test_outputs_come_from_the_best_epoch_and_not_the_last(linear_dataset):
    dataset = linear_dataset(samples=12, noise=2.0, dtype="float64")
    config = settings({**SMALL, "hidden": 64}, epochs=30, lr=0.02, early_stop_patience=0, dtype="float64")
    result = trained(dataset, config)
    valid = [epoch.valid_loss for epoch in result.epochs]
    assert result.best_epoch == 1 + int(np.argmin(valid)) < 30
    assert dataset.valid is not None
    of_outputs = np.mean((result.outputs["valid"][:, 0] - dataset.valid.targets) ** 2)
    assert of_outputs == pytest.approx(min(valid), rel=1e-12)
    assert result.best_loss == min(valid)


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_early_stop_comes_when_patience_ends_and_changes_nothing_before(linear_dataset, patience):
    dataset = linear_dataset(samples=12, noise=2.0)
    model = {**SMALL, "hidden": 64}
    whole = losses(trained(dataset, settings(model, epochs=30, lr=0.02, early_stop_patience=0)))
    best, expected = 0, []
    for number, (_, _, valid, _) in enumerate(whole):
        expected.append(whole[number])
        best = number if valid <= min(row[2] for row in expected) else best
        if number - best >= patience:
            break
    assert len(expected) < 30
    stopped = trained(dataset, settings(model, epochs=30, lr=0.02, early_stop_patience=patience))
    assert losses(stopped) == expected


@pytest.mark.parametrize(
    ("max_steps", "samples"), [(1, [20]), (3, [60]), (5, [96]), (7, [96, 40]), (10, [96, 96]), (99, [96] * 4)]
)
def test_step_limit_ends_training_also_inside_an_epoch(linear_dataset, max_steps, samples):
    result = trained(linear_dataset(), settings(max_steps=max_steps))
    assert [epoch.samples for epoch in result.epochs] == samples
    assert result.samples == sum(samples)
    assert all(np.isfinite(epoch.train_loss) for epoch in result.epochs)


def test_without_validation_the_last_epoch_is_the_best(linear_dataset):
    result = trained(replace(linear_dataset(), valid=None), settings(SMALL, early_stop_patience=1))
    assert [epoch.valid_loss for epoch in result.epochs] == [None] * 4
    assert (result.best_epoch, result.best_loss) == (4, None)
    assert result.outputs.keys() == {"test"}


@pytest.mark.parametrize(
    ("train", "factor", "said"),
    [
        ({"lr": 1e25, "clip": 0.0}, 1.0, r"step 2 of epoch 1 .*train\.lr"),
        ({"lr": 1e25}, 1.0, r"step 2 of epoch 1 .*train\.lr"),
        ({}, 1e25, "step 1 .*untrained weights"),
    ],
    ids=["rate", "rate and clipping", "data"],
)
@pytest.mark.parametrize("validated", [True, False])
def test_divergence_is_an_error_that_says_what_to_do(linear_dataset, train, factor, said, validated):
    dataset = linear_dataset()
    huge = replace(dataset.train, rows=dataset.train.rows * np.float32(factor))
    dataset = replace(dataset, train=huge, valid=dataset.valid if validated else None)
    with pytest.raises(SP500Error, match=said):
        trained(dataset, settings(SMALL, **train))
    with pytest.raises(SP500Error, match="not finite"):  # also in the very last step
        trained(dataset, settings(SMALL, lr=1e38, max_steps=1))


def test_best_loss_of_an_epoch_counts_the_untrained_model_where_the_run_does(linear_dataset):
    result = trained(linear_dataset(), settings(SMALL, lr=1.0))
    lowest = np.minimum.accumulate([result.untrained_loss, *(epoch.valid_loss for epoch in result.epochs)])
    assert [epoch.best_loss for epoch in result.epochs] == list(lowest[1:])
    assert progress.of_epochs(result.epochs, Meter("epoch", 4, since=0.0)).best_loss == result.best_loss


# Seeds.


def test_same_seeds_give_the_same_bits_whatever_was_drawn_before(linear_dataset):
    found = []
    for drawn in (1, 2):
        torch.manual_seed(drawn)
        np.random.seed(drawn)
        found.append(trained(linear_dataset(), settings(SMALL)))
    assert_same_bits(*found)


def first_outputs(dataset: Dataset, data: dict | None = None, **train: object) -> np.ndarray:
    """Outputs after one step over all windows, whose order then does not matter."""
    return trained(dataset, settings(SMALL, data, batch_size=96, max_steps=1, **train)).outputs["test"]


def test_train_seed_moves_the_weights_and_data_seed_the_order(linear_dataset):
    dataset = linear_dataset()
    first = first_outputs(dataset)
    np.testing.assert_allclose(first_outputs(dataset, {"seed": 1}), first, rtol=1e-4)
    assert not np.allclose(first_outputs(dataset, seed=1), first, rtol=0.1)
    assert losses(trained(dataset, settings(SMALL))) != losses(trained(dataset, settings(SMALL, {"seed": 1})))


def test_dropout_is_drawn_anew_in_every_epoch(linear_dataset, monkeypatch):
    build = models.build

    def build_with_random_head(*given: object, **keys: object) -> nn.Module:
        model = build(*given, **keys)
        nn.init.normal_(model.head.weight)
        return model

    monkeypatch.setattr(models, "build", build_with_random_head)
    # Weights that stay, one batch in one order: only dropout moves the loss.
    config = settings({**SMALL, "dropout": 0.5}, {"shuffle_train": False}, lr=1e-30, batch_size=96)
    dataset = replace(linear_dataset(), valid=None)
    found = [epoch.train_loss for epoch in trained(dataset, config).epochs]
    assert len(set(found)) == len(found)


def test_unshuffled_training_ignores_the_data_seed(linear_dataset):
    found = [trained(linear_dataset(), settings(SMALL, {"shuffle_train": False, "seed": seed})) for seed in (0, 1)]
    assert_same_bits(*found)


# Resuming.


@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_run_interrupted_after_any_epoch_resumes_to_the_same_bits(linear_dataset, tmp_path, epoch):
    dataset, config = linear_dataset(), settings(SMALL)
    whole = trained(dataset, config)
    with pytest.raises(Interrupted):
        trained(dataset, config, tmp_path, interrupt_after(epoch))
    seen: list[int] = []
    resumed = trained(dataset, config, tmp_path, lambda metrics: seen.append(metrics.epoch))
    assert_same_bits(whole, resumed)
    assert seen == list(range(epoch + 1, 5))
    assert resumed.fit_seconds == sum(line.seconds for line in resumed.epochs[epoch:])


@pytest.mark.parametrize("kind", ["linear", "lstm", "transformer"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_kind_of_model_resumes_to_the_same_bits(linear_dataset, tmp_path, kind, dtype):
    size = {} if kind == "linear" else {"hidden": 8, "layers": 2, "dropout": 0.2}
    dataset, config = linear_dataset(dtype=dtype), settings({"kind": kind, **size}, dtype=dtype)
    assert_same_bits(trained(dataset, config), cut_after(2, dataset, config, tmp_path))


@pytest.mark.parametrize(
    "train", [{"max_steps": 13}, {"epochs": 30, "early_stop_patience": 2, "lr": 0.05}], ids=["steps", "patience"]
)
@pytest.mark.parametrize("validated", [True, False])
def test_resumed_run_stops_where_an_uninterrupted_one_does(linear_dataset, tmp_path, train, validated):
    dataset = linear_dataset(samples=60, noise=2.0)
    dataset = dataset if validated else replace(dataset, valid=None)
    config = settings(SMALL, **train)
    assert_same_bits(trained(dataset, config), cut_after(2, dataset, config, tmp_path))


def test_resumed_run_remembers_the_best_weights_from_before(linear_dataset, tmp_path):
    dataset = linear_dataset(samples=12, noise=2.0)
    config = settings({**SMALL, "hidden": 64}, epochs=30, lr=0.02, early_stop_patience=0)
    whole = trained(dataset, config)
    assert whole.best_epoch < 28
    assert_same_bits(whole, cut_after(whole.best_epoch + 2, dataset, config, tmp_path))


def test_checkpoints_do_not_change_the_numbers(linear_dataset, tmp_path):
    dataset, config = linear_dataset(), settings(SMALL)
    assert_same_bits(trained(dataset, config), trained(dataset, config, tmp_path))


# Worker and machine.


def test_every_epoch_is_reported_once_and_in_order(linear_dataset):
    seen: list[EpochMetrics] = []
    result = trained(linear_dataset(), settings(), on_epoch=seen.append)
    assert seen == result.epochs
    assert [epoch.epoch for epoch in seen] == [1, 2, 3, 4]
    assert all(0 < epoch.train_seconds <= epoch.seconds for epoch in seen)
    assert result.device == "cpu"
    assert result.peak_worker_bytes > 10 * 2**20


def test_zero_threads_means_all_cores_also_after_a_run_with_one(linear_dataset):
    before = torch.get_num_threads()
    try:
        trained(linear_dataset(), settings(threads=1))
        assert torch.get_num_threads() == 1
        trained(linear_dataset(), settings(threads=0))
        assert torch.get_num_threads() in {os.cpu_count(), len(os.sched_getaffinity(0))}
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpu_that_is_not_there_is_refused_and_auto_takes_the_cpu():
    assert device("auto") == device("cpu") == CPU
    with pytest.raises(ResourcesError, match=r"train\.device cuda"):
        device("cuda")


def test_model_of_the_config_is_the_one_trained(linear_dataset):
    dataset = linear_dataset()
    config = settings({"kind": "lstm", "hidden": 4, "layers": 1, "dropout": 0.0}, lr=1e-30, max_steps=1)
    torch.manual_seed(derive(0, "weights"))
    model = models.build(ModelConfig(kind="lstm", hidden=4, layers=1, dropout=0.0), SHAPE)
    x = torch.from_numpy(dataset.test.rows).reshape(-1, 3, 2)
    np.testing.assert_allclose(trained(dataset, config).outputs["test"], model(x).detach().numpy(), rtol=1e-5)
