"""Coverage of the report's 95% intervals.

Returns are normal with constant volatility, or have fat tails and volatility clusters: GARCH(1,1) with Student-t
shocks, of 6 degrees of freedom as the S&P 500's, or of 4 and more persistent. The forecast is a signal of which returns
have a part, so that its true improvement over a forecast of zero is known: in the long run, and on the test days, given
their volatility and signals. The true Sharpe ratio is known as well.

For forecasts of volatility, targets of five days overlap. The rival is EWMA, fitted as the task fits it. The model
knows the process: its forecast is the rival's, moved a part of the way to the best one (which is better), or mirrored
in that (which is as good). The truth is that of the long run, from two million days.

    python benchmarks/coverage.py [--draws 1000] [--json]

`better` and `worse` are the shares of intervals above and below the truth of the test days: if that is 0, the models
that luck alone has called so, one in 40 each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.signal import lfilter

ROOT = Path(__file__).parent.parent
DAYS = {"one year": 252, "five years": 1239}
VOLATILITY = {"constant": None, "clusters": (0.10, 0.88, 6), "wild clusters": (0.09, 0.90, 4)}
"""Of GARCH(1,1): what a shock adds, what stays, and the shocks' degrees of freedom."""
TRUTHS = (0.0, 0.01, 0.04, -0.01, -0.04)
"""Improvements in the long run."""
SKILL, DRIFT, BURN_IN, PERSISTENCE = 0.05, 0.05, 500, 0.97
"""In standard deviations of a day's return, days until the volatility has forgotten its start, and a slow signal's."""


def returns(days: int, draws: int, generator: np.random.Generator, volatility: str) -> tuple[np.ndarray, np.ndarray]:
    """Return returns [day, draw] of mean 0 and variance 1, and the variance of each given the days before."""
    if (garch := VOLATILITY[volatility]) is None:
        return generator.standard_normal((days, draws)), np.ones((days, draws))
    added, kept, freedom = garch
    shocks = generator.standard_t(freedom, (days + BURN_IN, draws)) / np.sqrt(freedom / (freedom - 2))
    drawn, variances, variance = np.empty_like(shocks), np.empty_like(shocks), np.ones(draws)
    for day, shock in enumerate(shocks):
        variances[day], drawn[day] = variance, np.sqrt(variance) * shock
        variance = 1 - added - kept + added * drawn[day] ** 2 + kept * variance
    return drawn[BURN_IN:], variances[BURN_IN:]


def signals(noise: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """Return what the forecast knows [day, draw]: news of the day, a slow state, or the day before."""
    drawn = generator.standard_normal(noise.shape)
    if kind == "yesterday":
        return np.vstack([drawn[:1], noise[:-1]])
    for day in range(1, len(drawn) if kind == "slow" else 0):
        drawn[day] = PERSISTENCE * drawn[day - 1] + np.sqrt(1 - PERSISTENCE**2) * drawn[day]
    return drawn


def bets(truth: float) -> tuple[float, float]:
    """Return the part in returns, and in the forecast: the improvement on zero is (2 part - bet) bet / (1 + part^2)."""
    if truth > 0:  # the best bet
        return (part := float(np.sqrt(truth / (1 - truth)))), part
    return SKILL, SKILL + float(np.sqrt(SKILL**2 - truth * (1 + SKILL**2)))


def measure_improvements(
    noise: np.ndarray, variance: np.ndarray, signal: np.ndarray, truth: float
) -> dict[str, np.ndarray]:
    """Return for each draw whether the interval misses its days' improvement, and contains that of all days."""
    from sp500 import metrics

    part, bet = bets(truth)
    days, power = np.arange(len(noise)), (signal**2).mean(axis=0)
    target, forecast = part * signal + noise, bet * signal
    pairs = zip(((target - forecast) ** 2).T, (target**2).T, strict=True)
    gains = [metrics.improvement(loss, naive, days) for loss, naive in pairs]
    low, high = (np.array([gain[end] for gain in gains]) for end in ("low", "high"))
    of_days = (2 * part - bet) * bet * power / (part**2 * power + variance.mean(axis=0))
    return {"better": low > of_days, "worse": high < of_days, "long_run": (low <= truth) & (truth <= high)}


def measure_sharpes(noise: np.ndarray) -> dict[str, np.ndarray]:
    """Return the same for the Sharpe ratio."""
    from sp500 import metrics

    true = DRIFT * np.sqrt(metrics.TRADING_DAYS)
    dates = pd.bdate_range("2000-01-03", periods=len(noise))
    ends = []
    for path in noise.T:
        index = pd.DataFrame({"date": dates, "ticker": "A", "return": np.log1p(0.01 * (DRIFT + path).clip(-50))})
        ends.append(metrics.trading(np.ones(len(path)), index, cost_bps=0)["sharpe_interval"])
    low, high = np.array(ends).T
    return {"better": low > true, "worse": high < true, "long_run": (low <= true) & (true <= high)}


def measure(days: int, volatility: str, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a number of days and a kind of volatility."""
    generator = np.random.default_rng(days)
    noise, variance = returns(days, draws, generator, volatility)
    for kind in ("news", "slow", "yesterday"):
        signal = signals(noise, kind, generator)
        for truth in TRUTHS if kind != "yesterday" else TRUTHS[:1]:
            name = {"interval": "improvement", "forecast": kind, "truth": truth}
            yield name | measure_improvements(noise, variance, signal, truth)
    yield {"interval": "Sharpe ratio", "forecast": "long", "truth": DRIFT} | measure_sharpes(noise)


HORIZON, LONG_RUN = 5, (20_000, 100)
"""Days of a target of volatility; days and draws of the long run."""
MODELS = {"as good": 2.0, "better": 0.3}
"""Part of the way from the rival's forecast to the best."""


def volatility_forecasts(
    days: int, draws: int, generator: np.random.Generator, volatility: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log volatility of the next days, log EWMA, and the log of the true variance to come [day, draw]."""
    drawn, variance = returns(days + BURN_IN + HORIZON, draws, generator, volatility)
    added, kept, _ = VOLATILITY[volatility] or (0.0, 0.0, 0)
    squares, stays = drawn**2, added + kept
    following = 1 - stays + added * squares + kept * variance
    ahead = 1 + (following - 1) * np.mean([stays**later for later in range(HORIZON)])
    sums = np.cumsum(np.vstack([np.zeros((1, draws)), squares]), axis=0)
    realised = (sums[HORIZON:] - sums[:-HORIZON])[1:] / HORIZON
    average = lfilter([0.06], [1, -0.94], squares, axis=0)
    target, past, known = (0.5 * np.log(part[BURN_IN : BURN_IN + days]) for part in (realised, average, ahead))
    return target, past, known


def measure_volatility(days: int, volatility: str, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of forecasts of volatility: whether intervals miss the improvement of the long run."""
    from sp500 import metrics

    generator, dates = np.random.default_rng(days), np.arange(days)
    target, *inputs = volatility_forecasts(*LONG_RUN, generator, volatility)
    lines = [np.polyfit(values.ravel(), target.ravel(), 1) for values in inputs]

    def forecast(inputs: Sequence[np.ndarray], part: float) -> tuple[np.ndarray, np.ndarray]:
        rival, best = (np.polyval(line, values) for line, values in zip(lines, inputs, strict=True))
        return rival, rival + part * (best - rival)

    sample, *seen = volatility_forecasts(days, draws, generator, volatility)
    for name, part in MODELS.items():
        rival, model = (((target - values) ** 2).mean() for values in forecast(inputs, part))
        truth = float(1 - model / rival)
        losses = [((sample - values) ** 2).T for values in forecast(seen, part)]
        gains = [metrics.improvement(own, other, dates, horizon=HORIZON) for other, own in zip(*losses, strict=True)]
        low, high = (np.array([gain[end] for gain in gains]) for end in ("low", "high"))
        held = (low <= truth) & (truth <= high)
        yield {
            **{"interval": "volatility", "forecast": name, "truth": truth},
            **{"better": low > truth, "worse": high < truth, "long_run": held},
        }


def main(arguments: Sequence[str]) -> int:
    """Print coverage and one-sided errors of each case with the Clopper-Pearson interval of the coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="series per case (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    rows = []
    for span, days in DAYS.items():
        for volatility, garch in VOLATILITY.items():
            more = measure_volatility(days, volatility, asked.draws) if garch else ()
            for drawn in (*measure(days, volatility, asked.draws), *more):
                held = int((~(drawn["better"] | drawn["worse"])).sum())
                ends = stats.binomtest(held, asked.draws).proportion_ci(method="exact")
                shares = {key: float(np.mean(drawn[key])) for key in ("long_run", "better", "worse")}
                row = {key: drawn[key] for key in ("interval", "forecast", "truth")}
                row |= {"days": days, "volatility": volatility, "coverage": held / asked.draws}
                rows.append(row | {"low": float(ends.low), "high": float(ends.high)} | shares)
                if not asked.json:
                    print(
                        f"{span:10} {volatility:13} {row['interval']:12} {row['forecast']:9} {row['truth']:+.2f}  "
                        f"{row['coverage']:.3f} ({ends.low:.3f} to {ends.high:.3f}), long run {shares['long_run']:.3f}"
                        f"  better {shares['better']:.3f}, worse {shares['worse']:.3f}",
                        flush=True,
                    )
    if asked.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
