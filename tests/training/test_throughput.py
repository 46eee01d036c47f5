"""Operations, bytes and versions that are said before a training, against counts by hand and what is there after it."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sp500.config import RunConfig
from sp500.data.windows import Dataset
from sp500.errors import DiskError
from sp500.report import tables, terminal
from sp500.runs.store import RunStore
from sp500.studies import train
from sp500.tasks import catalog
from sp500.training import throughput
from sp500.training.checkpoint import Checkpoints
from sp500.training.loop import FitResult, fit
from sp500.training.task import Task
from sp500.training.worker import SoloWorker

MakeDataset = Callable[..., Dataset]
CPU = torch.device("cpu")
TEXT = {"max_bytes": 6_000, "context": 16}


def settings(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"train": {"epochs": 1, "batch_size": 500}, **sections})


def cost_of(config: RunConfig) -> throughput.ModelCost:
    task = catalog.task(config)
    found = throughput.count_cost(task, config, task.prepare(config))
    assert found is not None
    return found


def test_a_linear_models_operations_are_those_of_its_product_and_of_its_weights_gradient():
    found = cost_of(settings(model={"kind": "linear"}, data={"window": 10}))
    features = 10 * 6
    assert found == throughput.ModelCost(features + 1, 3 * 4 * (features + 1), 4.0 * features, "windows", 1)


def test_hidden_layers_cost_their_inputs_gradient_too():
    found = cost_of(settings(model={"kind": "mlp", "hidden": 32, "layers": 2}, data={"window": 10}))
    assert found.flops_per_window == 4 * 60 * 32 + 6 * 32 * 32 + 6 * 32


def test_an_lstms_operations_are_counted_step_by_step():
    found = cost_of(settings(model={"kind": "lstm", "hidden": 8, "layers": 1}, data={"window": 10}))
    steps = 10 * (4 * 6 * 32 + 6 * 8 * 32)  # the first layer's inputs need no gradient
    assert steps * 0.9 < found.flops_per_window <= steps + 6 * 8


def test_a_gpt_counts_attention_in_full_and_each_token():
    width, context, layers = 16, 16, 2
    model = {"kind": "gpt", "hidden": width, "layers": layers, "heads": 2}
    found = cost_of(settings(task="language", text=TEXT, model=model))
    matrices = layers * 12 * width**2 + width * 256
    attention = layers * 2 * context * width  # Chowdhery et al. 2022, appendix B: 12 L H Q T per token is 6 of these
    assert found.flops_per_window == context * 6 * (matrices + attention)
    assert (found.unit, found.units_per_window) == ("tokens", context)


def test_images_are_counted_as_images():
    assert cost_of(settings(task="images")).unit == "images"


def test_recomputed_activations_are_not_the_models_work():
    model = {"kind": "gpt", "hidden": 16, "layers": 2, "heads": 2}
    plain, again = (
        cost_of(settings(task="language", text=TEXT, model=model, train={"recompute": on})) for on in (False, True)
    )
    assert plain == again


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["linear", "mlp", "lstm", "transformer", "cnn", "gpt"])
def test_a_built_in_models_cost_by_its_layers_is_what_torchs_compiler_counts(kind, dtype, monkeypatch):
    other = {"cnn": {"task": "images"}, "gpt": {"task": "language", "text": TEXT}}
    for layers in (1, 3):
        sizes = {} if kind == "linear" else {"layers": layers, "hidden": 24}
        config = settings(model={"kind": kind, **sizes}, train={"dtype": dtype}, **other.get(kind, {}))
        task = catalog.task(config)
        dataset = task.prepare(config)
        generator = torch.random.get_rng_state()
        with monkeypatch.context() as patch:
            patch.setattr(throughput, "_count_operators", None)  # an error if it is called
            by_layers = throughput.count_cost(task, config, dataset)
        assert torch.equal(torch.random.get_rng_state(), generator)
        with monkeypatch.context() as patch:
            patch.setattr(throughput, "_count_layers", lambda *_: None)
            by_compiler = throughput.count_cost(task, config, dataset)
        assert by_layers is not None
        assert by_layers == by_compiler


class TiedProducts(nn.Module):
    """A layer of a user's with a product that no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, -1]) + x[:, -1] @ self.head.weight.T


class TiedTask(Task):
    def prepare(self, config: RunConfig) -> Dataset:
        return catalog.task(RunConfig()).prepare(config)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        return TiedProducts()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square().sum()

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> dict[str, dict[str, float]]:
        return {"valid": {}, "test": {}, "naive": {}}


def test_a_model_with_a_layer_that_is_not_built_in_is_counted_by_its_operators():
    task = TiedTask()
    found = throughput.count_cost(task, settings(), task.prepare(settings()))
    assert found is not None
    assert found.flops_per_window == 2 * (4 * 6)


class Reading(nn.Module):
    """A model of a user's that looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))[:, None] * self.weight if float(x.sum()) else x[:, 0, :1] * self.weight


class ReadingTask(Task):
    def prepare(self, config: RunConfig) -> Dataset:
        return catalog.task(RunConfig()).prepare(config)

    def model(self, config: RunConfig, dataset: Dataset) -> nn.Module:
        return Reading()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output[:, 0] - target).square().sum()

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> dict[str, dict[str, float]]:
        return {"valid": {}, "test": {}, "naive": {}}


def test_a_model_that_reads_its_numbers_is_not_counted():
    task = ReadingTask()
    assert throughput.count_cost(task, settings(), task.prepare(settings())) is None


@pytest.mark.parametrize("keep", ["best", 2, 3, "all"])
@pytest.mark.parametrize("steps", [0, 3])
def test_no_more_checkpoints_lie_on_the_disk_than_was_said(keep, steps, tmp_path, linear_dataset, monkeypatch):
    config = settings(
        model={"kind": "linear"},
        train={"epochs": 4, "batch_size": 40, "lr": 0.01, "keep": keep, "checkpoint_steps": steps},
    )
    dataset = linear_dataset()
    checkpoints, most, largest = Checkpoints(tmp_path, "versions", config.train.keep), 0, 0
    rename = Path.rename

    def counted(path: Path, target: Path) -> Path:
        nonlocal most, largest
        folders = [folder for folder in tmp_path.iterdir() if folder.is_dir() and not folder.is_symlink()]
        most = max(most, len(folders))
        largest = max(sum(file.stat().st_size for file in folder.glob("*.safetensors")) for folder in folders)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", counted)  # what is written lies next to the versions until it is renamed
    task = catalog.task(config)
    fit(task, dataset, config, SoloWorker(CPU), checkpoints)
    said = throughput.count_versions(config.train, -(-len(dataset.train) // 40))
    assert most <= said
    if keep == "all":
        assert most == said
    cost = throughput.count_cost(task, config, dataset)
    assert cost is not None
    assert cost.checkpoint_bytes <= largest <= cost.checkpoint_bytes + 4096  # names and shapes


def result(device_name: str, seconds: float = 2.0) -> FitResult:
    from sp500.runs.record import EpochMetrics

    epoch = EpochMetrics(
        epoch=1, train_loss=1.0, valid_loss=1.0, samples=1000, seconds=3.0, train_seconds=seconds + 0.5,
        first_batch_seconds=0.5,
    )  # fmt: skip
    return FitResult([epoch], 1, 1.0, 1.0, {}, 0, "cuda", 3.0, matmul_flops_per_second=4e12, device_name=device_name)


@pytest.mark.parametrize(
    ("device", "amp", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA H100 80GB HBM3", "none", 67e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA L4", "none", 30.3e12),
        ("NVIDIA L40S", "bfloat16", None),
        ("NVIDIA H100 PCIe", "bfloat16", None),
        ("", "none", None),
    ],
)
def test_utilisation_is_a_share_of_the_product_and_of_the_data_sheet(device, amp, peak):
    config = settings(train={"amp": amp}).model_copy(update={"num_workers": 2})
    found = throughput.describe(throughput.ModelCost(10, 120, 1e9, "tokens", 64), result(device), config)
    assert found is not None
    assert (found.per_second, found.mfu) == (500 * 64, pytest.approx(500e9 / 4e12))
    assert found.data_sheet_mfu == (None if peak is None else pytest.approx(500e9 / (2 * peak)))


def test_a_run_that_trained_nothing_has_no_throughput():
    cost = throughput.ModelCost(10, 120, 1e9, "tokens", 64)
    assert throughput.describe(cost, result("", seconds=0.0), settings()) is None


def test_a_run_records_its_throughput_and_shows_it(tmp_path):
    with RunStore(tmp_path).open("run") as run:
        record = train.train(settings(), run)
    found = record.throughput
    assert found is not None
    assert found.per_second == pytest.approx(record.warm_samples_per_second)
    assert found.mfu == pytest.approx(found.per_second * found.flops_per_window / found.matmul_flops_per_second)
    assert 0 < found.mfu < 1.5
    assert "windows/s in training" in terminal.text(record, tmp_path)
    (table,) = tables.throughput([record])
    assert [row.cells[0] for row in table.rows] == ["run"]
    assert tables.throughput([record.model_copy(update={"throughput": None})]) == []


Usage = namedtuple("Usage", ("total", "used", "free"))


def test_checkpoints_that_the_disk_cannot_hold_are_refused_and_many_are_announced(tmp_path, monkeypatch, capfd):
    config = settings()
    cost = throughput.ModelCost(10, 40 * 2**20, 1.0, "windows", 1)
    dataset = catalog.task(config).prepare(config)
    with RunStore(tmp_path).open("run") as run:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 100 * 2**20))
        train.warn_disk_use(cost, config, dataset, run)
        assert "40 MiB each, 160 MiB at most, 100 MiB free (train.keep" in capfd.readouterr().err
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 2**20))
        with pytest.raises(DiskError, match=r"a checkpoint needs 40 MiB and .*run has 1 MiB free"):
            train.warn_disk_use(cost, config, dataset, run)
