"""How often do the report's 95% intervals hold the truth?

Returns are normal with constant volatility, or have fat tails and volatility clusters (GARCH(1,1) with Student-t shocks
of 5 degrees of freedom). The forecast knows a twentieth of a standard deviation and bets twice as much, so that its
true improvement over a forecast of zero is exactly 0. The true Sharpe ratio is known as well.

    python benchmarks/coverage.py [--draws 1000] [--json]

`better` and `worse` are the shares of models that luck alone puts above and below: one in 40 each is claimed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parent.parent
DAYS = {"one year": 252, "five years": 1239}
SKILL, DRIFT, BURN_IN = 0.05, 0.05, 250
"""In standard deviations of a day's return, and days until the volatility has forgotten its start."""


def returns(days: int, draws: int, generator: np.random.Generator, *, clustered: bool) -> np.ndarray:
    """Returns [day, draw] of mean 0 and variance 1."""
    if not clustered:
        return generator.standard_normal((days, draws))
    shocks = generator.standard_t(5, (days + BURN_IN, draws)) / np.sqrt(5 / 3)
    drawn, variance = np.empty_like(shocks), np.ones(draws)
    for day, shock in enumerate(shocks):
        drawn[day] = np.sqrt(variance) * shock
        variance = 0.02 + 0.10 * drawn[day] ** 2 + 0.88 * variance
    return np.asarray(drawn[BURN_IN:])


def signals(noise: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """What the forecast knows [day, draw]: news of the day, a slow state, or the day before."""
    drawn = generator.standard_normal(noise.shape)
    if kind == "yesterday":
        return np.vstack([drawn[:1], noise[:-1]])
    for day in range(1, len(drawn) if kind == "slow" else 0):
        drawn[day] = 0.95 * drawn[day - 1] + np.sqrt(1 - 0.95**2) * drawn[day]
    return drawn


def count_missed_improvements(noise: np.ndarray, signal: np.ndarray) -> tuple[int, int]:
    """How many intervals of the improvement lay above 0, and how many below."""
    from sp500 import metrics
    from sp500.formatting import against_naive

    days = np.arange(len(noise))
    target, forecast = SKILL * signal + noise, 2 * SKILL * signal
    pairs = zip(((target - forecast) ** 2).T, (target**2).T, strict=True)
    verdicts = [against_naive(metrics.improvement(loss, naive, days)) for loss, naive in pairs]
    return verdicts.count("better"), verdicts.count("worse")


def count_missed_sharpes(noise: np.ndarray) -> tuple[int, int]:
    """How many intervals of the Sharpe ratio lay above the true one, and how many below."""
    from sp500 import metrics

    true, above, below = DRIFT * np.sqrt(metrics.TRADING_DAYS), 0, 0
    dates = pd.bdate_range("2000-01-03", periods=len(noise))
    for path in noise.T:
        index = pd.DataFrame({"date": dates, "ticker": "A", "return": np.log1p(0.01 * (DRIFT + path).clip(-50))})
        low, high = metrics.trading(np.ones(len(path)), index, cost_bps=0)["sharpe_interval"]
        above, below = above + (low > true), below + (high < true)
    return above, below


def main(arguments: Sequence[str]) -> int:
    """Print coverage and one-sided errors of each case with the Clopper-Pearson interval of the coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="series per case (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    rows = []
    for span, days in DAYS.items():
        for clustered in (False, True):
            generator = np.random.default_rng(days)
            noise = returns(days, asked.draws, generator, clustered=clustered)
            kinds = {f"improvement, {kind}": signals(noise, kind, generator) for kind in ("news", "slow", "yesterday")}
            missed = {name: count_missed_improvements(noise, signal) for name, signal in kinds.items()}
            for name, (above, below) in (missed | {"Sharpe ratio": count_missed_sharpes(noise)}).items():
                covered = asked.draws - above - below
                ends = stats.binomtest(covered, asked.draws).proportion_ci(method="exact")
                row = {"interval": name, "days": days, "clustered": clustered, "coverage": covered / asked.draws}
                row |= {"low": float(ends.low), "high": float(ends.high)}
                rows.append(row | {"better": above / asked.draws, "worse": below / asked.draws})
                if not asked.json:
                    volatility = "clustered" if clustered else "constant"
                    print(
                        f"{span:10} {volatility:9} {name:22} {row['coverage']:.3f} ({ends.low:.3f} to {ends.high:.3f})"
                        f"  better {above / asked.draws:.3f}, worse {below / asked.draws:.3f}",
                        flush=True,
                    )
    if asked.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
