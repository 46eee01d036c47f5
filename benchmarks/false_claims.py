"""Frequency of the report's claims of skill, or of reliable harm, if there is nothing to forecast.

Prices are random walks whose daily returns are drawn, one by one, from those of the S&P 500 index of 2013 to 2017: they
keep its drift and its tails, and no day says anything about the next. Two questions, each by the code that a user runs
(prices in a file, validation, features, splits, training, metrics, and the sentence or word of the report):

    searches   18 small MLPs per search. How many searches report a probability of skill above the usual 95%?
    walks      one linear model per walk. How many are called better, and how many worse, than the naive forecast?

    python benchmarks/false_claims.py --searches 100 --walks 200

Every count comes with its Clopper-Pearson interval (1934, Biometrika 26). Exit code 1: a count is above its limit,
which is what a rate of 5% per search and per direction of a walk stays within in 95% of such simulations.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parent.parent
DRIFT = slice("2013", "2017")
SESSIONS = 4000
"""Sessions of a walk: 16 years, of which about 600 days are validated on and 600 tested on."""
AXES = {"model.hidden": (8, 16, 32), "train.lr": (1e-3, 3e-3, 1e-2), "model.dropout": (0.0, 0.2)}
RATE = 0.05
"""The rate of errors that the report promises."""


@dataclass(frozen=True)
class Count:
    """The number of claims, with the 95% Clopper-Pearson interval of its rate."""

    claim: str
    count: int
    of: int
    low: float
    high: float
    limit: int

    @property
    def text(self) -> str:
        """One line."""
        rate = f"{self.count / self.of:.1%}, 95% interval {self.low:.1%} to {self.high:.1%}"
        return f"{self.claim}: {self.count} of {self.of} ({rate}); at most {self.limit} allowed"


def tally(claim: str, claims: Iterable[bool]) -> Count:
    """Return the claims that were made, and the largest number that the rate of errors explains."""
    outcomes = list(claims)
    interval = stats.binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="exact")
    limit = int(stats.binom.ppf(0.95, len(outcomes), RATE))
    return Count(claim, sum(outcomes), len(outcomes), float(interval.low), float(interval.high), limit)


def write_walk(folder: Path, seed: int, signal: float = 0.0) -> Path:
    """Write prices of one random walk on the index's sessions to a file; `signal` is its returns' autocorrelation."""
    from sp500.config import DataConfig
    from sp500.data import sources

    close = sources.load(DataConfig()).close.iloc[:, 0]
    returns = np.log(close).diff().loc[DRIFT].to_numpy()
    drawn = np.random.default_rng(seed).choice(returns, SESSIONS)
    drift = drawn.mean()
    for day in range(1, SESSIONS if signal else 0):
        drawn[day] += signal * (drawn[day - 1] - drift)
    path = folder / f"walk-{seed}.csv"
    walk = pd.DataFrame({"NOISE": 1000 * np.exp(drawn.cumsum())}, index=close.index[-SESSIONS:].rename("date"))
    walk.to_csv(path)
    return path


def search_claims_skill(seed: int, epochs: int, axes: Mapping[str, Sequence[float]], signal: float) -> bool:
    """Return whether the report of a search on a random walk says that its skill is above the usual 95%."""
    from sp500 import metrics
    from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
    from sp500.report.search.results import newest
    from sp500.report.search.verdicts import luck
    from sp500.runs.record import make_record
    from sp500.runs.results import ChosenConfig, SearchSummary
    from sp500.training.loop import fit
    from sp500.training.worker import SoloWorker, device
    from sp500.tuning import space, trial_data
    from sp500.tuning.packing import scheduler

    with tempfile.TemporaryDirectory() as folder:
        base = RunConfig(
            data=DataConfig(source=str(write_walk(Path(folder), seed, signal)), seed=seed),
            model=ModelConfig(layers=1),
            train=TrainConfig(epochs=epochs, early_stop_patience=0, seed=seed, threads=1, device="cpu"),
        )
        data = trial_data.prepare([base])[trial_data.key(base)]
    assert isinstance(data, trial_data.TrialData)
    trials = space.grid(base, axes)
    results = [
        result
        for pack in scheduler.split_into_packs(trials, "auto")
        for batch in scheduler.run_pack(data, pack)
        for result in batch
    ]
    best = min(results, key=lambda result: result.score if result.score is not None else float("inf"))
    assert best.valid_loss is not None
    chosen = space.trial(base, best.overrides).config
    outputs = fit(data.task, data.dataset, chosen, SoloWorker(device("cpu"))).outputs
    judged = data.task.judge(outputs, data.dataset)
    deflated = metrics.deflated_excess(
        judged["valid"]["excess"], [trial_result.valid_excess_sharpe for trial_result in results]
    )
    record = make_record(
        chosen,
        name=f"search-{seed}",
        experiment="tune",
        arm="sequential",
        metrics=judged,
        search=SearchSummary(
            space="walk",
            method="grid",
            key=str(seed),
            configs=len(results),
            failed=sum(trial_result.status != "ok" for trial_result in results),
            resumed=0,
            rerun=0,
            trial_seconds=sum(trial_result.seconds for trial_result in results),
            cores=1,
            best=ChosenConfig(id=best.id, overrides=best.overrides, valid_loss=best.valid_loss, score=best.score),
            by_dataset=[],
            deflated_sharpe=deflated,
        ),
    )
    return any("above the usual" in sentence for sentence in luck(newest([record], {})))


def linear_verdict(seed: int, epochs: int) -> str:
    """Return what the report calls a linear model of a random walk: better | worse | unclear | naive kept."""
    from sp500.config import DataConfig, ModelConfig, RunConfig, TrainConfig
    from sp500.formatting import against_naive
    from sp500.tasks import catalog
    from sp500.training.loop import fit
    from sp500.training.worker import SoloWorker, device

    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            data=DataConfig(source=str(write_walk(Path(folder), seed)), seed=seed),
            model=ModelConfig(kind="linear"),
            train=TrainConfig(epochs=epochs, seed=seed, threads=1, device="cpu"),
        )
        task = catalog.task(config)
        dataset = task.prepare(config)
    result = fit(task, dataset, config, SoloWorker(device("cpu")))
    return against_naive(task.judge(result.outputs, dataset)["test"]["improvement"], result.best_epoch)


def main(arguments: Sequence[str]) -> int:
    """Run both simulations and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="searches on random walks (default: 100)")
    parser.add_argument("--walks", type=int, default=200, help="random walks with a linear model (default: 200)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each MLP of a search (default: 8)")
    parser.add_argument("--linear-epochs", type=int, default=25, help="epochs of a linear model (default: 25)")
    parser.add_argument(
        "--signal", type=float, default=0.0, help="autocorrelation of a search's returns: is skill found?"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    parser.add_argument("--quick", action="store_true", help="2 searches of 4 configs and 2 walks, 1 epoch each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    axes = {name: values[:1] if name == "model.dropout" else values[:2] for name, values in AXES.items()}
    sizes = (2, 2, 1, 1) if asked.quick else (asked.searches, asked.walks, asked.epochs, asked.linear_epochs)
    searches, walks, epochs, linear_epochs = sizes
    counts = []
    claims = partial(search_claims_skill, epochs=epochs, axes=axes if asked.quick else AXES, signal=asked.signal)
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        skilled = pool.map(claims, range(searches))
        words = list(pool.map(partial(linear_verdict, epochs=linear_epochs), range(1000, 1000 + walks)))
        counts += [tally("searches that claim skill above 95%", skilled)] if searches else []
    if walks:
        counts += [
            tally(f"linear models called {name}", [word == name for word in words]) for name in ("better", "worse")
        ]
    print(json.dumps([asdict(count) for count in counts]) if asked.json else "\n".join(count.text for count in counts))
    return int(any(count.count > count.limit for count in counts))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
