"""The cost of a model to compute and to keep, and the share of a device's speed that its training reaches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sp500.config import RunConfig, TrainConfig
from sp500.data.batches import Batches
from sp500.data.windows import Dataset
from sp500.models import catalog, gpt, weights
from sp500.runs.record import Throughput
from sp500.training.loop import FitResult
from sp500.training.step import DTYPES
from sp500.training.task import Task
from sp500.training.worker import Worker

Unit = Literal["windows", "images", "tokens"]
DATA_SHEETS = {
    r"H200|H100 80GB HBM3": {"bfloat16": 989e12, "float32": 67e12},
    r"A100": {"bfloat16": 312e12, "float32": 19.5e12},
    r"L4$": {"bfloat16": 121e12, "float32": 30.3e12},
}
"""Peak operations per second of dense matrices by a GPU's name, from NVIDIA's data sheets: bfloat16 on tensor cores
without sparsity; float32 without TF32, as torch computes it by default."""
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
MATMUL_SHARE = 0.02
"""Share of a training's time for measuring the speed of a matrix product. One second at most."""


@dataclass(frozen=True)
class ModelCost:
    """Cost of one model: bytes of a checkpoint, and per window its units and floating-point operations."""

    parameters: int
    checkpoint_bytes: int
    """Weights, buffers and AdamW's two moments of each trained weight."""
    flops_per_window: float
    """Matrix products and convolutions of the forward and the backward pass. Each multiplication and each addition
    counts. Attention counts as without a mask. What is computed again does not count."""
    unit: Unit
    units_per_window: int


def count_cost(task: Task, config: RunConfig, dataset: Dataset) -> ModelCost | None:
    """Return the cost of the task's model, from the shapes of its layers: no window is computed.

    None for a model that needs numbers to be built or run, and for an estimator.
    """
    if catalog.is_estimator(config.model, dataset):
        return None
    batch = next(Batches(dataset.test, torch.device("cpu")).in_order(1))
    own = config.model.own or config.own_task
    try:
        counted = None if own or config.model.needs else _count_layers(task, config, dataset, batch.x)
        model, flops = counted or _count_operators(task, config, dataset, batch.x)
    except (RuntimeError, AssertionError, TypeError, ValueError):
        return None  # a model of the user's that reads values, or mixes devices
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = sum(tensor.nbytes for tensor in weights.dump(model).values())
    images = batch.x[0].ndim > 2
    tokens = 1 if images else batch.y[0].numel()
    return ModelCost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        checkpoint_bytes=state + 2 * sum(parameter.nbytes for parameter in trained),
        flops_per_window=float(flops),
        unit="images" if images else "tokens" if tokens > 1 else "windows",
        units_per_window=tokens,
    )


def _count_layers(task: Task, config: RunConfig, dataset: Dataset, x: Tensor) -> tuple[nn.Module, int] | None:
    """Return a built-in model, its weights not filled, and its operations per window by the formulas of its layers.

    None for a model with other layers. The layers see a batch of no windows, which on the CPU costs nothing. Torch's
    meta device is for this as well, but its operators import the compiler, a second per process.
    """
    with weights.Unfilled():
        model = task.model(config, dataset).to(DTYPES[config.train.dtype]).eval()
    flops = 0

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal flops
        flops += OPERATIONS[type(layer)](layer, inputs[0], output)

    for layer in model.modules():
        if type(layer) in OPERATIONS:
            layer.register_forward_hook(add)
        elif type(layer) not in WITHOUT_PRODUCTS and not type(layer).__module__.startswith("sp500."):
            return None
    model(torch.empty((0, *x.shape[1:]), dtype=x.dtype))
    return model, flops


def _count_operators(task: Task, config: RunConfig, dataset: Dataset, x: Tensor) -> tuple[nn.Module, int]:
    """Return any model on torch's meta device, and the operations of a window as torch's compiler sees them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        # Not in training, where batch normalisation refuses one image whose last layers have one pixel.
        model = task.model(config, dataset).to(DTYPES[config.train.dtype]).eval()
        # Fake tensors, by which transformers' models know that they must not look at numbers.
        with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
            model(torch.empty(x.shape, dtype=x.dtype)).sum().backward()
    return model, counter.get_total_flops()


def _count_product(layer: nn.Linear | nn.Conv2d, x: Tensor, output: Tensor) -> int:
    """Return the operations of one product forward, and two back: the gradients of the weights and of the input."""
    return 2 * _products(x) * output.shape[1:].numel() * layer.weight[0].numel()


def _count_lstm(layer: nn.LSTM, x: Tensor, output: object) -> int:
    """Return the operations of one LSTM of one direction. The state before the first day has no gradient."""
    del output
    days = x.shape[1]
    of_input, of_state = layer.get_parameter("weight_ih_l0").numel(), layer.get_parameter("weight_hh_l0").numel()
    return 2 * (days * _products(x) * of_input + (3 * days - 1) * of_state)


def _count_self_attention(layer: nn.MultiheadAttention, x: Tensor, output: object) -> int:
    """Return the operations of the four projections and of the attention."""
    projections = _products(x) * layer.in_proj_weight.numel() + 3 * layer.out_proj.weight.numel()
    return 2 * x.shape[1] * projections + _count_attention(layer, x, output)


def _count_attention(layer: nn.Module, x: Tensor, output: object) -> int:
    """Return the operations of scores and of sums of values, each a product forward and two back, without a mask."""
    del layer, output
    _, length, width = x.shape
    return 12 * length**2 * width


def _products(x: Tensor) -> int:
    """Return how many products of a size a layer takes: the input of the first layer needs no gradient."""
    return 3 if x.requires_grad else 2


OPERATIONS: dict[type[nn.Module], Callable[[Any, Tensor, Any], int]] = {
    nn.Linear: _count_product,
    nn.Conv2d: _count_product,
    nn.LSTM: _count_lstm,
    nn.MultiheadAttention: _count_self_attention,
    gpt.Block: _count_attention,
}
"""Operations per window of each layer that a built-in model has, by its input and output [batch, ...]."""
WITHOUT_PRODUCTS = (
    *(nn.Sequential, nn.ModuleList, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.Flatten, nn.ReLU, nn.GELU),
    *(nn.LayerNorm, nn.GroupNorm, nn.Embedding, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    nn.modules.linear.NonDynamicallyQuantizableLinear,
)
"""The other layers of torch in built-in models. The last is counted with its attention, which does not call it."""


def count_versions(train: TrainConfig, steps_per_epoch: int) -> int:
    """Return the number of versions of a checkpoint on the disk at once, at most, including the one being written."""
    if train.keep != "all":
        return (2 if train.keep == "best" else train.keep) + 2  # the best and the new one
    steps = steps_per_epoch * train.epochs
    steps = min(steps, train.max_steps or steps)
    return 1 + min(train.epochs, -(-steps // steps_per_epoch)) + (steps // (train.checkpoint_steps or steps + 1))


def add_matmul(result: FitResult, config: RunConfig, worker: Worker) -> FitResult:
    """Return the result with the rate of a matrix product on the workers that trained it, all at once."""
    worker.total(torch.zeros((), device=worker.device))  # they begin together
    reached = measure_matmul(worker.device, config.train, min(MATMUL_SHARE * result.train_seconds, 1.0))
    total = worker.total(torch.tensor(reached, dtype=torch.float64, device=worker.device))
    name = torch.cuda.get_device_name(worker.device) if worker.device.type == "cuda" else ""
    return replace(result, matmul_flops_per_second=float(total), device_name=name)


def measure_matmul(device: torch.device, train: TrainConfig, seconds: float) -> float:
    """Return operations per second of a product of square matrices on this device, in the type of the training."""
    dtype = torch.bfloat16 if train.amp == "bfloat16" else DTYPES[train.dtype]
    size = MATMUL_SIZE.get(device.type, MATMUL_SIZE["cpu"])
    generator = torch.Generator(device).manual_seed(0)  # a separate one: the training's random numbers stay as they are
    left, right = (torch.rand(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    product = left @ right
    _wait(device)
    started, done = time.perf_counter(), 0
    while not done or time.perf_counter() - started < seconds:
        torch.mm(left, right, out=product)
        _wait(device)
        done += 1
    return 2 * size**3 * done / (time.perf_counter() - started)


def describe(cost: ModelCost | None, result: FitResult, config: RunConfig) -> Throughput | None:
    """Return the training speed of the model; None if nothing was trained, or its cost is not known."""
    if cost is None or result.warm_seconds <= 0 or not result.matmul_flops_per_second:
        return None
    windows = result.samples / result.warm_seconds
    flops = cost.flops_per_window * windows
    dtype = "bfloat16" if config.train.amp == "bfloat16" else config.train.dtype
    peak = next((peaks.get(dtype) for name, peaks in DATA_SHEETS.items() if re.search(name, result.device_name)), None)
    return Throughput(
        unit=cost.unit,
        per_second=windows * cost.units_per_window,
        parameters=cost.parameters,
        flops_per_window=cost.flops_per_window,
        matmul_flops_per_second=result.matmul_flops_per_second,
        mfu=flops / result.matmul_flops_per_second,
        data_sheet_mfu=flops / (peak * max(config.num_workers, 1)) if peak else None,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
