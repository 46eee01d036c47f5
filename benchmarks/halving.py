"""Asynchronous halving against the full grid: how often the grid's best config is kept, and how many epochs are saved.

60 LSTMs of at most 27 epochs. The grid is trained in full once per seed, and the stoppers decide on its curves, in the
order of the grid and in random orders.

    python benchmarks/halving.py --seeds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence

from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from sp500.tuning import sequential, trial_data
from sp500.tuning.space import grid
from sp500.tuning.stopper import STOPPERS, StopRule

EPOCHS, ORDERS, FIRST = 27, 200, (1, 3, 9)
AXES = {
    "model.hidden": (4, 8, 16),
    "train.lr": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "model.dropout": (0.0, 0.3),
    "train.weight_decay": (0.0, 0.1),
}
Curves = Mapping[str, Sequence[float]]
"""Validation loss after each epoch, by trial."""


def make_config(seed: int, start: str) -> RunConfig:
    """Return the base of the grid. One series from `start`, so that an epoch is short."""
    train = TrainConfig(epochs=EPOCHS, seed=seed, early_stop_patience=0)
    data = DataConfig(tickers=("AAPL",), start=start, window=10)
    return RunConfig(data=data, model=ModelConfig(kind="lstm"), train=train)


def train_grid(base: RunConfig) -> Curves:
    """Train every config to its end."""
    data = next(iter(trial_data.prepare([base]).values()))
    assert not isinstance(data, str)
    curves = {}
    for trial in grid(base, AXES):
        epochs = sequential.fit_alone(data, trial).epochs
        curves[trial.id] = [epoch.valid_loss for epoch in epochs if epoch.valid_loss is not None]
    return curves


def replay(rule: StopRule, curves: Curves, order: Sequence[str]) -> dict[str, int]:
    """Return the epochs of each config if one trains after another in this order."""
    stopper, epochs = rule.make(), {}
    for trial in order:
        rungs = stopper.rungs(0, EPOCHS - 1)
        ended = (rung for rung in rungs if not stopper.decide(trial, rung, min(curves[trial][:rung])))
        epochs[trial] = next(ended, EPOCHS)
    return epochs


def judge(rule: StopRule, curves: Curves, orders: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the mean over orders: whether the grid's best config is found, how much worse the found one is, epochs."""
    best = min(curves, key=lambda trial: min(curves[trial]))
    kept, worse, share = 0.0, 0.0, 0.0
    for order in orders:
        epochs = replay(rule, curves, order)
        losses = {trial: min(curves[trial][: epochs[trial]]) for trial in order}
        found = min(losses, key=lambda trial: losses[trial])
        kept += (found == best) / len(orders)
        worse += (losses[found] / min(curves[best]) - 1) / len(orders)
        share += sum(epochs.values()) / (EPOCHS * len(order)) / len(orders)
    return {"best_found": kept, "loss_above_best": worse, "share_of_epochs": share}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print each result as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", default="2019-01-01", help="first date of the series")
    flags = parser.parse_args(arguments)
    for seed in range(flags.seeds):
        base, chance, started = make_config(seed, flags.start), random.Random(seed), time.perf_counter()  # noqa: S311
        curves = train_grid(base)
        print(json.dumps({"seed": seed, "grid_seconds": time.perf_counter() - started}), flush=True)
        names = list(curves)
        orders = {"grid": [names], "random": [chance.sample(names, len(names)) for _ in range(ORDERS)]}
        for name, first, order in itertools.product(STOPPERS, FIRST, orders):
            facts = {"stop": name, "first": first, "order": order}
            print(json.dumps(facts | judge(StopRule(name, first), curves, orders[order])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
