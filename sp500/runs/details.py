"""Details of a judged test of prices, as a record keeps them: by ticker, portfolio, year and size of the forecast."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12


class Gain(TypedDict):
    """Share by which a loss is below that of the naive forecast, with a 95% interval."""

    value: float | None
    low: float | None
    high: float | None


class Score(TypedDict):
    """How some of the windows were forecast."""

    samples: int
    loss: float
    """Mean over the windows, by the metric of the verdict."""
    naive_loss: float
    """That of the naive forecast which is best on the whole test."""
    improvement: Gain
    information_coefficient: float | None
    hit_rate: float | None
    """Share of the windows whose direction was right, of those that moved; None where no direction is forecast."""


class TickerScore(Score):
    """One ticker."""

    ticker: str


class YearScore(Score):
    """One year."""

    year: int


class Strategy(TypedDict):
    """What a rule of holding tickers earns on the test; annual figures by 252 days, returns simple."""

    name: str
    """model (the sign of the forecast) | buy_and_hold | group 1 (lowest forecasts), group 2, ... | long_short."""
    annual_return: float
    annual_return_after_cost: float
    sharpe_after_cost: float | None
    sharpe_after_cost_interval: list[float] | None
    turnover: float
    max_drawdown: float
    """Largest fall from a peak of the value after costs, as a share of the peak."""
    years: dict[str, float]
    """Growth of the value after costs in each year."""
    curve: list[float]
    """Value of 1 after the last trade of each of the `months`."""
    drawdown: list[float]
    """How far that is below the peak before, as a share of the peak."""


class Bin(TypedDict):
    """Windows with forecasts of about one size, and what came."""

    samples: int
    forecast: float
    realised: float
    low: float | None
    """95% interval of `realised`, by days."""
    high: float | None


class Residuals(TypedDict):
    """What came less what was forecast."""

    mean: float
    deviation: float
    skew: float | None
    kurtosis: float | None
    """3 for a normal distribution."""
    quantiles: dict[str, float]
    autocorrelation: float | None
    """Of the mean of each day with that of the day before."""


class Breakdown(TypedDict):
    """The test of one model in detail."""

    metric: str
    over: str
    """The naive forecast."""
    tickers: list[TickerScore]
    years: list[YearScore]
    groups: int
    """Portfolios by the size of the forecast; 0: none."""
    months: list[str]
    """Dates of the last trade of each month."""
    strategies: list[Strategy]
    slope: float | None
    """Of what came on the forecast, by least squares: 1 where forecasts are of the right size."""
    bins: list[Bin]
    residuals: Residuals


class Part(TypedDict):
    """Loss that is added when a part of the inputs is shuffled among the windows."""

    name: str
    increase: float
    """Of the mean loss."""
    share: float | None
    """The increase as a share of the loss with the inputs as they are."""
    low: float | None
    """95% interval of the share, by days."""
    high: float | None


class Importance(TypedDict):
    """Permutation importance on the validation windows."""

    metric: str
    loss: float
    windows: int
    repeats: int
    seed: int
    features: list[Part]
    """Each with all its days."""
    lags: list[Part]
    """Each day of the window with all features: lag 0 is the day of the forecast."""


class Elsewhere(TypedDict):
    """Forecasts that no run of this project made."""

    file: str
    sha256: str
    forecasts: int
    """Rows of the file."""
    judged: int
    """Test windows that have a forecast."""
    windows: int
    """Test windows."""
    tries: int
    chance: float | None
    """Of as large an improvement for the best of so many tries without skill."""
    expected_max_sharpe: float | None
    """Excess Sharpe ratio per trade that luck gives to the best of them."""
    sharpe_probability: float | None
    """That the true excess Sharpe ratio is above 0, so deflated."""
