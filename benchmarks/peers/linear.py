"""A linear model of the next day's return, from a file of closes to a test error: pandas and PyTorch, no framework.

Columns, split, scaling, batches and early stopping are those of `train.py --model.kind linear`. Arguments: FILE OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

WINDOW, GAP, EPOCHS, PATIENCE = 30, 31, 25, 5


def compute_columns(close: pd.Series) -> pd.DataFrame:
    """Return six columns that are known at the close of a day, and the target: the next day's log return."""
    log = np.log(close)
    change = log.diff()
    up, down = (side.rolling(14).mean() for side in (change.clip(lower=0), -change.clip(upper=0)))
    columns = {"return": change, "month": log.diff(20), "week": log.diff(5), "volatility": change.rolling(20).std()}
    columns |= {"rsi": (up - down) / (up + down), "distance": log - log.rolling(50).mean()}
    return pd.DataFrame({**columns, "target": -log.diff(-1)}).iloc[49:]


def make_windows(table: pd.DataFrame) -> dict[str, tuple[Tensor, Tensor]]:
    """Return x [window, number] and y [window] of training, validation and test, scaled by the training dates."""
    test = int(len(table) * 0.85)
    valid = int(test * 0.825)
    rows, y = table.drop(columns="target").to_numpy(), table["target"].to_numpy()
    early = slice(0, valid - GAP)
    rows, y = (rows - rows[early].mean(0)) / rows[early].std(0), y / y[early].std()
    x = np.lib.stride_tricks.sliding_window_view(rows, WINDOW, axis=0).reshape(-1, WINDOW * rows.shape[1])
    y = y[WINDOW - 1 :]
    ends = {"train": (0, valid - GAP), "valid": (valid, test - GAP), "test": (test, len(table) - 1)}
    parts = {name: slice(max(first - WINDOW + 1, 0), last - WINDOW + 1) for name, (first, last) in ends.items()}
    return {name: tuple(torch.from_numpy(a[part]).float() for a in (x, y)) for name, part in parts.items()}  # type: ignore[misc]


def main() -> None:
    """Train until the patience ends, and write losses and epochs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    close = pd.read_csv(sys.argv[1], index_col="date", parse_dates=True)["close"]
    parts = make_windows(compute_columns(close))
    x, y = parts["train"]
    model, loss_of = nn.Linear(x.shape[1], 1), nn.functional.mse_loss
    nn.init.zeros_(model.weight)
    nn.init.constant_(model.bias, float(y.mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    def judge(part: str) -> float:
        with torch.no_grad():
            return float(loss_of(model(parts[part][0]).squeeze(-1), parts[part][1]))

    best, best_epoch, epoch, train_loss = judge("valid"), 0, 0, 0.0
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    while epoch < EPOCHS and epoch - best_epoch < PATIENCE:
        epoch, train_loss = epoch + 1, 0.0
        for rows in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            loss = loss_of(model(x[rows]).squeeze(-1), y[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            train_loss += loss.item() * len(rows) / len(x)
        if (valid := judge("valid")) < best:
            best, best_epoch = valid, epoch
            weights = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    result = {"loss": best, "epochs": epoch, "train_loss": train_loss}
    print(f"test {judge('test'):.5f}")
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
