"""Data-parallel training with a bare TorchTrainer of Ray Train.

https://docs.ray.io/en/latest/train/getting-started-pytorch.html
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain
import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(job: dict[str, Any]) -> None:
    """Train in one worker."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = plain.load(job["data"])
    x, y = data["train_x"], data["train_y"]
    model = prepare_model(plain.build(x.shape[1], job["hidden"], job["dropout"], float(y.mean())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["lr"], weight_decay=0.0)
    workers = ray.train.get_context().get_world_size()
    loader = prepare_data_loader(DataLoader(TensorDataset(x, y), batch_size=256 // workers, shuffle=True))
    best, metrics = plain.evaluate(model, data), {}
    for epoch in range(job["epochs"]):
        model.train()
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs).squeeze(-1), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += torch.tensor([loss.item() * len(targets), len(targets)])
        torch.distributed.all_reduce(total)
        best = min(best, plain.evaluate(model, data))
        metrics = {"loss": best, "epochs": epoch + 1, "train_loss": float(total[0] / total[1])}
        ray.train.report(metrics)
    if ray.train.get_context().get_world_rank() == 0:  # a result without a checkpoint holds no metrics
        Path(job["out"]).write_text(json.dumps(metrics))


if __name__ == "__main__":
    job = plain.read_job()
    trainer = TorchTrainer(train, train_loop_config=job, scaling_config=ScalingConfig(num_workers=job["workers"]))
    trainer.fit()
