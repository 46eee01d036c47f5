"""Signs of forecasts of daily prices that are too good to be true. The usual cause: a value of the next day.

Correlations of the usual features with the next return are below 0.2 in the bundled prices, and an R² of daily returns
is within a few thousandths of zero. The bounds lie far above both, and above four standard errors of what luck alone
reaches in few days.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sp500.config import task
from sp500.formatting import fixed, percent

WARNING = "Suspiciously good: look for tomorrow's values first"
CORRELATION, R2, DIRECTION = 0.3, 0.1, 0.6
LUCK = 4.0
"""Standard errors."""
DIRECTIONS = ("directional_accuracy", "accuracy")
TITLES = {
    "r2": "R²",
    "information_coefficient": "IC",
    "daily_ic": "daily IC",
    "roc_auc": "ROC-AUC",
    "directional_accuracy": "right direction",
    "accuracy": "right direction",
}


def bound_correlation(days: float, horizon: int = 1) -> float:
    """Return the largest correlation with returns over `horizon` days, which overlap, that is not suspicious."""
    return max(CORRELATION, LUCK * math.sqrt(horizon / days))


def warn(signs: str) -> str:
    """Return the warning in front of a verdict, with its signs; '' without any."""
    return f"{WARNING} ({signs}). " if signs else ""


def find_signs(
    config: Mapping[str, Any], card: Mapping[str, Any], test: Mapping[str, Any], naive: Iterable[Mapping[str, Any]]
) -> str:
    """Return the suspicious test metrics, as 'R² 0.97, right direction 90.1%'; '' for data other than prices, and
    for targets that are persistent, as volatility is.

    `config` and `card` are the record's, `test` the model's metrics, `naive` those of the naive forecasts.
    """
    kind = task.of_record(config)
    if not kind.from_prices or kind.persistent or "first_date" not in card or not test.get("samples"):
        return ""
    days, horizon = test["samples"] / max(len(card.get("tickers", ())), 1), int(config["data"].get("horizon", 1))
    correlation, luck = bound_correlation(days, horizon), LUCK * math.sqrt(horizon / days)
    # Prices that mostly rise have one direction that is mostly right.
    usual = max((value for row in naive for key in DIRECTIONS if (value := row.get(key)) is not None), default=0.5)
    bounds = {"r2": max(R2, luck**2), "information_coefficient": correlation, "daily_ic": correlation}
    bounds |= {"roc_auc": 0.5 + correlation / 2} | dict.fromkeys(DIRECTIONS, max(DIRECTION, usual + luck / 2))
    above = [key for key, bound in bounds.items() if (test.get(key) or 0.0) > bound]
    return ", ".join(f"{TITLES[key]} {(percent if key in DIRECTIONS else fixed)(test[key])}" for key in above)
