"""The next byte of a text, always compared with counts of short contexts and with compressors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp500 import metrics
from sp500.config import RunConfig
from sp500.data.copied import Copied
from sp500.data.text import dataset as text
from sp500.data.text import naive
from sp500.data.windows import Dataset, Windows, masked
from sp500.runs.results import Metrics
from sp500.seeding import torch_generator
from sp500.training.task import Task

SAMPLE = 200
MOST = 10_000_000
"""Bytes before the test that the naive methods know, and of the test that they are judged on: more takes xz minutes."""


@dataclass(frozen=True)
class Language(Task):
    """Next byte. Naive: contexts of one and two bytes, bz2 and xz, each given the text before the test."""

    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Windows of bytes, each with the next byte as its target."""
        return Copied(text.dataset(config.text), config.data).dataset(config.train.dtype)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of cross entropies over all bytes, in nats."""
        return F.cross_entropy(output.flatten(0, 1), target.flatten().long(), reduction="sum")

    def kept(self, output: Tensor, target: Tensor) -> Tensor:
        """Nats of each window [batch, 1]."""
        nats = F.cross_entropy(output.transpose(1, 2), target.long(), reduction="none")
        return nats.sum(dim=1, keepdim=True)

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Nats per byte, perplexity and bits per byte; the improvement over the best naive method on the test."""
        splits = {"valid": dataset.valid, "test": dataset.test}
        found: Metrics = {name: scores(outputs[name], part) for name, part in splits.items() if part is not None}
        before = b"".join(part.rows.tobytes() for part in (dataset.train, dataset.valid) if part is not None)
        by_method = naive.bits_per_byte(before[-MOST:], dataset.test.rows[:MOST].tobytes())
        said = {name: {"bits_per_byte": bits} for name, bits in by_method.items()}
        best = metrics.best_naive(said, "bits_per_byte", largest=False)
        value = 1 - found["test"]["bits_per_byte"] / by_method[best] if by_method[best] > 0 else None
        # A compressor has no loss per window to compare with, and windows of one text are far from independent.
        gain = {"over": best, "metric": "bits_per_byte", "value": value, "low": None, "high": None}
        found["test"]["improvement"] = gain
        return {**found, "naive": said}

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Columns start (first byte of the window in its part) and nats (of the window)."""
        return pd.DataFrame({"start": windows.starts, "nats": output[:, 0]})

    def sample(self, model: nn.Module, dataset: Dataset) -> str:
        """SAMPLE bytes after the first context of the test, each drawn with the probability that the model gives it."""
        start = dataset.test.rows[: dataset.window].tobytes()
        return self.written(model, start, SAMPLE, self.config.train.seed).decode(errors="replace")

    @torch.no_grad()
    def written(self, model: nn.Module, start: bytes, length: int, seed: int) -> bytes:
        """`length` bytes after `start`, each drawn with the probability that the model gives it."""
        model.eval()
        generator = torch_generator(seed, "sample")
        made = torch.tensor(list(start), dtype=torch.uint8)
        for _ in range(length):
            chances = model(made[None, -self.config.text.context :])[0, -1].softmax(dim=0)
            made = torch.cat([made, torch.multinomial(chances, 1, generator=generator).to(made.dtype)])
        return bytes(made[len(start) :].tolist())


def scores(nats: np.ndarray, windows: Windows) -> Metrics:
    """Metrics of a split from the nats of its windows [window, 1]."""
    left_out = masked(windows.targets)
    count = windows.targets.size - (0 if left_out is None else int(left_out.sum()))
    loss = float(nats.astype(np.float64).sum() / count)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": loss / math.log(2),
        "samples": len(windows),
        "bytes": count,
    }
