"""What a task measures per epoch, the epoch that it chooses, and the average of the weights."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forks import run_group
from torch import Tensor, nn

import sp500
from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.errors import ConfigError
from sp500.runs.record import EpochMetrics
from sp500.seeding import derive
from sp500.tasks import synthetic
from sp500.tasks.settings import SyntheticConfig
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult, fit
from sp500.training.worker import GroupWorker, SoloWorker, Worker
from sp500.tuning.sequential import run_trial
from sp500.tuning.space import ConfigTrial
from sp500.tuning.trial_data import TrialData

CPU = torch.device("cpu")


def settings(**train: object) -> RunConfig:
    plain = {"epochs": 5, "batch_size": 64, "lr": 0.05, "dtype": "float64", "device": "cpu", **train}
    return RunConfig(
        task="synthetic",
        synthetic=SyntheticConfig(samples=400, features=4),
        model=ModelConfig(kind="mlp", hidden=8, dropout=0.0),
        train=TrainConfig.model_validate(plain),
    )


@dataclass(frozen=True)
class Measured(synthetic.Synthetic):
    """A task that measures the share of right classes, and a number that each epoch makes worse."""

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, sp500.Sums]:
        right = (outputs.argmax(dim=1) == targets).sum()
        return {"top1": sp500.Sums(right, len(targets)), "size": sp500.Sums(outputs.abs().sum(), len(targets))}


def train(config: RunConfig, worker: Worker, folder: Path | None = None) -> FitResult:
    task = Measured(config)
    return fit(task, task.prepare(config), config, worker, Checkpoints(folder, "x") if folder else None)


def test_measures_of_the_best_epoch_are_those_of_its_outputs():
    config = settings()
    result, data = train(config, SoloWorker(CPU)), Measured(config).prepare(config)
    for split, part in (("valid", data.valid), ("test", data.test)):
        assert part is not None
        share = float(np.mean(result.outputs[split].argmax(axis=1) == part.targets))
        assert result.measures[split]["top1"] == pytest.approx(share, abs=1e-12)
    assert result.epochs[result.best_epoch - 1].measures == result.measures["valid"]
    assert result.best_score is None


@pytest.mark.parametrize(("monitor", "mode"), [("top1", "max"), ("size", "min"), ("size", "max")])
def test_monitor_decides_on_best_epoch_end_and_rank_in_a_search(monitor, mode):
    config = settings(monitor=monitor, monitor_mode=mode, early_stop_patience=2, epochs=8)
    result, sign = train(config, SoloWorker(CPU)), -1 if mode == "max" else 1
    scores = [sign * epoch.measures[monitor] for epoch in result.epochs]
    trial = ConfigTrial("1", {}, config)
    task = Measured(config)
    ranked = run_trial(TrialData(task, task.prepare(config), 1.0), trial)
    if result.best_epoch:
        assert result.best_epoch == int(np.argmin(scores)) + 1
        assert result.best_score == min(scores)
    assert len(scores) == min(result.best_epoch + 2, 8)
    assert ranked.score == result.best_score
    assert ranked.valid_loss == result.best_loss


def test_monitor_of_nothing_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"train.monitor top5: expected valid_loss or what .* measures: size, top1"):
        train(settings(monitor="top5", monitor_mode="max"), SoloWorker(CPU))


def test_epochs_without_measures_are_written_as_before():
    epoch = EpochMetrics(epoch=1, train_loss=1.0, valid_loss=1.0, samples=1, seconds=1.0)
    assert "measures" not in epoch.model_dump_json()


def test_average_is_that_of_torch():
    config = settings(ema=0.9, epochs=2, clip=0.0)
    task = Measured(config)
    data, result = task.prepare(config), train(config, SoloWorker(CPU))
    torch.manual_seed(derive(0, "weights"))
    model = task.model(config, data).double()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    x, y = torch.from_numpy(data.train.rows), torch.from_numpy(data.train.targets)
    losses = []
    for epoch in (1, 2):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(derive(0, "order", epoch)))
        for chosen in order.split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen][:, None]), y[chosen]).backward()
            optimizer.step()
            averaged.update_parameters(model)
        assert data.valid is not None
        valid = averaged(torch.from_numpy(data.valid.rows)[:, None]).detach()
        losses.append(float(nn.functional.cross_entropy(valid, torch.from_numpy(data.valid.targets))))
    assert [epoch.valid_loss for epoch in result.epochs] == pytest.approx(losses, abs=1e-12)
    assert math.dist(losses, [epoch.train_loss for epoch in result.epochs]) > 1e-3


def train_as_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    for parallel in ("ddp", "fsdp"):
        config = settings(ema=0.9, epochs=2, parallel=parallel, checkpoint_steps=3)
        for _ in range(2):  # the second time from the middle of the second epoch
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder / parallel / "epoch-00002", ignore_errors=True)
            dist.barrier()
            result = train(config, GroupWorker(rank, 2, CPU), folder / parallel)
        if rank == 0:
            np.save(folder / f"{parallel}.npy", [result.outputs["test"].sum(), *result.measures["test"].values()])
    dist.destroy_process_group()


def test_average_and_measures_of_two_resumed_ranks_are_those_of_one_process(tmp_path):
    config = settings(ema=0.9, epochs=2, checkpoint_steps=3)
    straight = train(config, SoloWorker(CPU), tmp_path / "solo")
    shutil.rmtree(tmp_path / "solo" / "epoch-00002")
    resumed = train(config, SoloWorker(CPU), tmp_path / "solo")
    assert np.array_equal(resumed.outputs["test"], straight.outputs["test"])
    run_group(2, train_as_rank, tmp_path)
    expected = [straight.outputs["test"].sum(), *straight.measures["test"].values()]
    for parallel in ("ddp", "fsdp"):
        assert np.load(tmp_path / f"{parallel}.npy") == pytest.approx(expected, abs=1e-9)
