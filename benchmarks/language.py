"""Bytes per second of the training loop against a plain torch loop with the same network, in turns in one process.

    python benchmarks/language.py                  # 3 turns of 300 steps of the recipe below
    python benchmarks/language.py --steps 2000 --turns 1

The recipe is nanoGPT's for a CPU (4 layers, 4 heads, width 128, context 64, batch 12) on the first 1,000,000 bytes of
the source of Python's library. Both sides take the windows in a random order, clip gradients and use AdamW.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from sp500.config import ModelConfig, RunConfig, TrainConfig
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset
from sp500.models import catalog
from sp500.tasks.language import Language
from sp500.training.loop import fit
from sp500.training.worker import SoloWorker


def recipe(steps: int, source: str) -> RunConfig:
    """Return the settings of both sides."""
    return RunConfig(
        task="language",
        text=TextConfig(source=source, max_bytes=1_000_000),
        model=ModelConfig(kind="gpt", hidden=128, layers=4, heads=4, dropout=0.0),
        train=TrainConfig(epochs=1000, max_steps=steps, batch_size=12, lr=1e-3, early_stop_patience=0),
    )


def plain(config: RunConfig, dataset: Dataset) -> float:
    """Return the bytes per second of a loop of twenty lines."""
    torch.set_num_threads(config.train.threads)
    torch.manual_seed(0)
    model = catalog.build(config.model, dataset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0, fused=True)
    rows, targets = (torch.from_numpy(part.copy()).long() for part in (dataset.train.rows, dataset.train.targets))
    windows = rows.view(-1, dataset.window)
    optimizer.zero_grad()
    started = time.perf_counter()
    for _ in range(config.train.max_steps):
        chosen = torch.randint(len(windows), (config.batch_size,))
        scores = model(windows[chosen])
        loss = functional.cross_entropy(scores.flatten(0, 1), targets[chosen].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
        optimizer.step()
    return config.train.max_steps * config.batch_size * dataset.window / (time.perf_counter() - started)


def run_loop(config: RunConfig, dataset: Dataset) -> tuple[float, float]:
    """Return bytes per second of the training loop, evaluation apart, and bits per byte on the validation part."""
    result = fit(Language(config), dataset, config, SoloWorker(torch.device("cpu")), splits=())
    assert result.best_loss is not None
    return result.samples * dataset.window / result.train_seconds, result.best_loss / 0.6931471805599453


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of each turn (default: 300)")
    parser.add_argument("--turns", type=int, default=3, help="turns of both sides (default: 3)")
    parser.add_argument("--source", default="stdlib", help="text.source (default: stdlib)")
    asked = parser.parse_args()
    config = recipe(asked.steps, asked.source)
    dataset = Language(config).prepare(config)
    plain(config.model_copy(update={"train": config.train.model_copy(update={"max_steps": 10})}), dataset)  # warm up
    turns = [(plain(config, dataset), *run_loop(config, dataset)) for _ in range(asked.turns)]
    ratios = [loop / alone for alone, loop, _ in turns]
    result = {
        "plain_bytes_per_second": statistics.median(alone for alone, *_ in turns),
        "loop_bytes_per_second": statistics.median(loop for _, loop, _ in turns),
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "valid_bits_per_byte": turns[-1][2],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
