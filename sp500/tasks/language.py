"""The next byte of a text, always compared with counts of short contexts and with compressors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp500 import hub, metrics
from sp500.config import RunConfig
from sp500.data.copied import Copied
from sp500.data.text import dataset as text
from sp500.data.text import naive, tokens
from sp500.data.text.settings import TextConfig
from sp500.data.text.tokenizer import Tokenizer, restore
from sp500.data.text.tokens import MOST
from sp500.data.windows import Dataset, Windows, target_mask
from sp500.models.pretrained import hf
from sp500.runs.results import Metrics
from sp500.seeding import torch_generator
from sp500.training.task import Task

SAMPLE = 200


@dataclass(frozen=True)
class Language(Task):
    """Next byte. Naive: contexts of one, two and up to five bytes, bz2 and xz, each given the text before."""

    config: RunConfig
    made_by_workers: bool = False

    def prepare(self, config: RunConfig) -> Dataset:
        """Return windows of bytes or tokens, each with the next one as its target."""
        settings, path = config.section(TextConfig), ""
        if config.model.has_tokenizer:
            path = str(hub.fetch(str(config.model.used["path"]), "model.path"))
        dataset = text.dataset(settings) if settings.plain and not path else tokens.dataset(settings, path)
        return Copied(dataset, config.data).dataset(config.train.dtype)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of cross entropies over all bytes, in nats."""
        return F.cross_entropy(output.flatten(0, 1), target.flatten().long(), reduction="sum")

    def kept(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the nats of each window [batch, 1]."""
        nats = F.cross_entropy(output.transpose(1, 2), target.long(), reduction="none")
        return nats.sum(dim=1, keepdim=True)

    def judge(self, outputs: dict[str, np.ndarray], dataset: Dataset) -> Metrics:
        """Return nats and bits per byte and perplexity; the improvement over the best naive method on the test."""
        splits = {"valid": dataset.valid, "test": dataset.test}
        sizes = dataset.card.get("bytes", {})
        by_split: Metrics = {
            name: scores(outputs[name], part, sizes.get(name)) for name, part in splits.items() if part is not None
        }
        by_method = dataset.card.get("naive_bits") or self._naive_bits(dataset)
        naive_scores = {name: {"bits_per_byte": bits} for name, bits in by_method.items()}
        best = metrics.best_naive(naive_scores, "bits_per_byte", largest=False)
        value = 1 - by_split["test"]["bits_per_byte"] / by_method[best] if by_method[best] > 0 else None
        # A compressor has no loss per window to compare with, and windows of one text are far from independent.
        gain = {"over": best, "metric": "bits_per_byte", "value": value, "low": None, "high": None}
        by_split["test"]["improvement"] = gain
        return {**by_split, "naive": naive_scores}

    def _naive_bits(self, dataset: Dataset) -> dict[str, float]:
        before = b"".join(part.rows.tobytes() for part in (dataset.train, dataset.valid) if part is not None)
        return naive.bits_per_byte(before[-MOST:], dataset.test.rows[:MOST].tobytes())

    def predictions(self, output: np.ndarray, windows: Windows, dataset: Dataset) -> pd.DataFrame:
        """Return the columns start (first byte of the window in its part) and nats (of the window)."""
        return pd.DataFrame({"start": windows.starts, "nats": output[:, 0]})

    def sample(self, model: nn.Module, dataset: Dataset) -> str:
        """Return SAMPLE tokens after the first context of the test, each drawn with its probability by the model."""
        start = dataset.test.rows[: dataset.window].tolist()
        ids = self._draw(model, start, SAMPLE, self.config.train.seed)
        return _tokenizer(dataset).decode(ids).decode(errors="replace")

    def generate(self, model: nn.Module, dataset: Dataset, start: bytes, length: int, seed: int) -> bytes:
        """Return the bytes of `length` tokens after `start`, each drawn with the probability that the model gives."""
        tokenizer = _tokenizer(dataset)
        ids = tokenizer.encode(start).ids.tolist()
        return tokenizer.decode(self._draw(model, ids[-self.config.section(TextConfig).context :], length, seed))

    @torch.no_grad()
    def _draw(self, model: nn.Module, start: list[int], length: int, seed: int) -> list[int]:
        model.eval()
        generator, context = torch_generator(seed, "sample"), self.config.section(TextConfig).context
        ids = torch.tensor(start)
        for _ in range(length):
            chances = model(ids[None, -context:])[0, -1].softmax(dim=0)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)])
        return ids[len(start) :].tolist()

    def publish(self, model: nn.Module, dataset: Dataset, folder: Path) -> None:
        """Write a model of transformers and its tokenizer in the ecosystem's format; nothing for other models."""
        if not isinstance(model, hf.HuggingFace):
            return
        model.save(folder)
        brought = self.config.section(TextConfig).tokenizer in ("", "model")
        if not (brought and hf.copy_tokenizer(model.folder, folder)):
            _tokenizer(dataset).save(folder)


def _tokenizer(dataset: Dataset) -> Tokenizer:
    return restore(dataset.state or {"tokenizer": "bytes"})


def scores(nats: np.ndarray, windows: Windows, size: int | None = None) -> Metrics:
    """Return the metrics of a split from the nats of its windows [window, 1], whose targets represent `size` bytes.

    Default: a byte each.
    """
    left_out = target_mask(windows.targets)
    count = windows.targets.size - (0 if left_out is None else int(left_out.sum()))
    total = float(nats.astype(np.float64).sum())
    return {
        "loss": total / count,
        "perplexity": math.exp(min(total / count, 700.0)),
        "bits_per_byte": total / (math.log(2) * (size or count)),
        "samples": len(windows),
        "bytes": size or count,
    }
