"""Data-parallel training with torchrun and gloo.

https://docs.pytorch.org/tutorials/beginner/ddp_series_multigpu.html
"""

from __future__ import annotations

import json
from pathlib import Path

import plain
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    job = plain.read_job()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = plain.load(job["data"])
    x, y = data["train_x"], data["train_y"]
    model = DistributedDataParallel(plain.build(x.shape[1], job["hidden"], job["dropout"], float(y.mean())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["lr"], weight_decay=0.0)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(TensorDataset(x, y))
    loader = DataLoader(TensorDataset(x, y), batch_size=256 // dist.get_world_size(), sampler=sampler)
    best, total = plain.evaluate(model, data), torch.zeros(2)
    for epoch in range(job["epochs"]):
        model.train()
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs).squeeze(-1), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += torch.tensor([loss.item() * len(targets), len(targets)])
        dist.all_reduce(total)
        best = min(best, plain.evaluate(model, data))
    if dist.get_rank() == 0:
        result = {"loss": best, "epochs": job["epochs"], "train_loss": float(total[0] / total[1])}
        Path(job["out"]).write_text(json.dumps(result))
    dist.destroy_process_group()
