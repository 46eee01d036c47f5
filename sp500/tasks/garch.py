"""GARCH(1,1) and GJR-GARCH(1,1) with Student-t errors as rivals of a forecast of volatility (extra `garch`).

Bollerslev (1987, Rev. Economics and Statistics 69) and Glosten, Jagannathan and Runkle (1993, J. Finance 48). `arch`
fits them; the filter and the forecast are their recursions with the fitted numbers, so that no later price can change
an earlier forecast.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.signal import lfilter

log = logging.getLogger(__name__)

FEWEST = 500
"""Returns from which a model is fitted."""
BACKCAST = 75
"""First returns whose mean square is the variance before the first day."""
PERCENT = 100.0
"""Returns are fitted in percent, as `arch` asks for."""


@dataclass(frozen=True)
class Fitted:
    """Mean; and of the variance: its constant, and the weights of the last square, of a negative one, and of itself."""

    mean: float
    constant: float
    square: float
    negative: float
    kept: float

    def forecast(self, returns: np.ndarray, horizon: int) -> np.ndarray:
        """Return the mean variance of the `horizon` days after each return [day].

        With p = square + negative / 2 + kept, the share of a deviation that stays a day, and v the variance of the next
        day, it is u + (v - u) (1 - p^h) / (h (1 - p)) for the long-run variance u = constant / (1 - p).
        """
        errors = returns - self.mean
        shocks = self.constant + (self.square + self.negative * (errors < 0)) * errors**2
        begin = float((errors[:BACKCAST] ** 2).mean())
        before = self.constant + (self.square + self.negative / 2 + self.kept) * begin
        following, _ = lfilter([1.0], [1.0, -self.kept], shocks, zi=[self.kept * before])
        stays = self.square + self.negative / 2 + self.kept
        powers = stays ** np.arange(horizon)
        # The mean over the horizon of constant * (1 + p + ... + p^(k-1)) + p^k v.
        constants = np.concatenate([[0.0], np.cumsum(powers[:-1])]) * self.constant
        return np.asarray(constants.mean() + powers.mean() * following)


def fit(returns: np.ndarray, *, asymmetric: bool) -> Fitted:
    """Fit a model to returns in percent [day]."""
    from arch import arch_model

    model = arch_model(returns, mean="Constant", vol="GARCH", p=1, o=int(asymmetric), q=1, dist="t", rescale=False)
    result = model.fit(disp="off", show_warning=False)
    if result.convergence_flag:
        log.warning("GARCH: the fit to %d returns did not converge (code %d)", len(returns), result.convergence_flag)
    numbers = result.params
    return Fitted(
        *(float(numbers.get(name, 0.0)) for name in ("mu", "omega", "alpha[1]", "gamma[1]", "beta[1]")),
    )


def forecast(close: pd.DataFrame, horizon: int, *, asymmetric: bool) -> pd.DataFrame:
    """Return log volatilities [date, ticker], by a model that is fitted to all returns before each year.

    NaN before the first year with FEWEST returns before it.
    """
    return pd.DataFrame({name: _forecast(close[name].dropna(), horizon, asymmetric) for name in close}).reindex(
        close.index
    )


def _forecast(close: pd.Series, horizon: int, asymmetric: bool) -> pd.Series:
    returns = PERCENT * np.log(close).diff().dropna()
    years, values = returns.index.year, returns.to_numpy(float)
    forecasts = np.full(len(returns), np.nan)
    for year in np.unique(years):
        first, end = np.searchsorted(years, [year, year + 1])
        if first >= FEWEST:
            fitted = fit(values[:first], asymmetric=asymmetric)
            forecasts[first:end] = fitted.forecast(values[:end], horizon)[first:]
    return pd.Series(0.5 * np.log(forecasts) - np.log(PERCENT), returns.index)
