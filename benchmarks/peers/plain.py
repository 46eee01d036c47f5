"""A plain PyTorch loop, one config after the other; the other peers train by its `train`.

https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Data = dict[str, Tensor]
Result = tuple[float, int]
"""Lowest validation loss, and epochs."""


def load(path: str) -> Data:
    """Return windows x [window, number] and targets y [window] of training and validation."""
    return {name: torch.from_numpy(array) for name, array in np.load(path).items()}


def build(inputs: int, hidden: int, dropout: float, start: float) -> nn.Sequential:
    """Return an MLP of two hidden layers that begins with the training mean as its forecast."""
    head = nn.Linear(hidden, 1)
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, start)
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(dropout), second, nn.ReLU(), nn.Dropout(dropout), head)


def train(config: dict[str, Any], data: Data, job: dict[str, Any]) -> Iterator[float]:
    """Yield the lowest validation loss so far after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    x, y = data["train_x"], data["train_y"]
    model = build(x.shape[1], config["hidden"], config["dropout"], float(y.mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.0, fused=job["fused"])
    best, best_epoch, epoch = evaluate(model, data), 0, 0
    while epoch < job["epochs"] and not 0 < job["patience"] <= epoch - best_epoch:
        epoch += 1
        model.train()
        for rows in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[rows]).squeeze(-1), y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if (valid := evaluate(model, data)) < best:
            best, best_epoch = valid, epoch
        yield best


def evaluate(model: nn.Module, data: Data) -> float:
    """Return the mean squared error on the validation windows."""
    model.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(data["valid_x"]).squeeze(-1), data["valid_y"]))


def fit(config: dict[str, Any], data: Data, job: dict[str, Any]) -> Result:
    """Train one config to its end."""
    losses = list(train(config, data, job))
    return losses[-1], len(losses)


def list_configs(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the job's axes."""
    return [dict(zip(job["axes"], values, strict=True)) for values in itertools.product(*job["axes"].values())]


def read_job() -> dict[str, Any]:
    """Return the job in the file that the command line names."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return job


def write(job: dict[str, Any], results: list[Result]) -> None:
    """Write the results where the job wants them."""
    Path(job["out"]).write_text(json.dumps(results))


def main() -> None:
    """Train all configs of a job."""
    job = read_job()
    data = load(job["data"])
    write(job, [fit(config, data, job) for config in list_configs(job)])


if __name__ == "__main__":
    main()
