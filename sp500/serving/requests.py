"""Bodies of requests, and their errors: field, rule and date, never a traceback."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import chain
from typing import Annotated, Any, NoReturn

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from pydantic_core import PydanticCustomError

from sp500.data import prices as data_prices
from sp500.data import sessions
from sp500.data.features import CLOSE_FEATURES, WARM_UP
from sp500.data.prices import fit_columns
from sp500.data.validation import FaultyPrices, summarize, validate
from sp500.errors import DataError
from sp500.serving.predictor import Predictor
from sp500.serving.scores import TRACES, trace_returns
from sp500.training.task import Forecasting, Relative, Remembering

MOST_DAYS, MOST_WINDOWS, MOST_NUMBERS = 5_000, 1_024, 100_000
"""Largest numbers of days and windows in a request, and of numbers in an answer."""
MOST_COLUMNS, MOST_TICKERS = 100, 1_000
MOST_PROBLEMS = 20
"""Most problems that an answer lists."""
DAYS_ENDED = 250
"""Sessions ago on which a ticker may have ended that is still forecast by the server's prices."""
EPOCH = date(1970, 1, 1).toordinal()
OHLCV = ("open", "high", "low", "volume")
# The first fault of a list is enough: to make objects of 30,000 takes most of a second.
Numbers = Annotated[list[FiniteFloat], Field(max_length=MOST_DAYS, fail_fast=True)]


class Problem(BaseModel):
    """One thing that is wrong with a request."""

    field: str
    message: str
    rule: str = ""
    date: str = ""


class BadRequest(Exception):
    """A body that cannot be answered; the answer has status 422 and the problems."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems[0].message)
        self.problems = problems


def refuse(field: str, message: str, **more: str) -> BadRequest:
    """Return the error for one field; `more`: its rule and date."""
    return BadRequest(Problem(field=field, message=message, **more))


class Body(BaseModel):
    """Base of all bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_many(cls, body: object) -> object:
        """Report many fields as one problem: 100,000 of them, a mebibyte, would be seconds of work for an answer."""
        if isinstance(body, dict) and len(body) > len(cls.model_fields) + MOST_PROBLEMS:
            raise PydanticCustomError(
                "many",
                "has {count} fields; expected {known}",
                {"count": len(body), "known": ", ".join(cls.model_fields)},
            )
        return body


class Prices(Body):
    """Daily prices of one ticker in New York, oldest first; or the names of tickers whose prices the server has."""

    ticker: str = Field("?", max_length=32)
    tickers: Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=MOST_TICKERS)] = []
    """Forecast these by the server's own prices, as GET /v1/prices lists them. A `ticker` without dates as well."""
    dates: Annotated[list[date], Field(min_length=2, max_length=MOST_DAYS, fail_fast=True)] = []
    close: Numbers = []
    open: Numbers | None = None
    high: Numbers | None = None
    low: Numbers | None = None
    volume: Numbers | None = None
    columns: Annotated[dict[str, Numbers], Field(max_length=MOST_COLUMNS)] = {}
    """Further columns of the model's own by name, as `columns` of GET /v1/models lists them."""
    real_moves: Annotated[list[date], Field(max_length=100)] = []
    """Dates of moves that look like a fault and happened."""

    def known(self) -> list[str]:
        """Return the tickers to forecast by the server's own prices; none for a request with prices.

        Raises BadRequest for half of either.
        """
        given = [name for name in ("dates", "close", *OHLCV, "columns", "real_moves") if getattr(self, name)]
        if self.tickers and given:
            raise refuse(given[0], "goes with one ticker and its prices, not with tickers")
        if missing := [name for name in ("dates", "close") if given and not getattr(self, name)]:
            raise refuse(missing[0], "Field required")
        if not given and not self.tickers and "ticker" not in self.model_fields_set:
            raise refuse("dates", "Field required; or send ticker or tickers alone")
        return list(dict.fromkeys(self.tickers)) if self.tickers else [] if given else [self.ticker]

    def fields(self) -> tuple[dict[str, pd.Series], list[str]]:
        """Checked prices and further columns by name, and what was repaired, by the rules of training data.

        Raises BadRequest.
        """
        columns = {name: values for name in ("close", *OHLCV) if (values := getattr(self, name)) is not None}
        if usual := [name for name in self.columns if name in {"close", *OHLCV}]:
            raise refuse(f"columns.{usual[0]}", "is a field of its own, not one of columns")
        for name, values in (columns | {f"columns.{name}": values for name, values in self.columns.items()}).items():
            if len(values) != len(self.dates):
                raise refuse(name, f"has {len(values)} numbers for {len(self.dates)} dates")
        for number, (before, day) in enumerate(zip(self.dates, self.dates[1:], strict=False), 1):
            if day <= before:
                rule, word = ("duplicate", "is there twice") if day == before else ("unsorted", f"comes after {before}")
                raise refuse(f"dates[{number}]", f"{day} {word}", rule=rule, date=str(day))
        if self.dates[-1] > (today := datetime.now(UTC).date()):
            last = f"dates[{len(self.dates) - 1}]"
            raise refuse(last, f"is after {today}", rule="future", date=str(self.dates[-1]))
        days = np.array([day.toordinal() for day in self.dates]) - EPOCH  # ten times as fast as from dates
        index = pd.DatetimeIndex(days.astype("datetime64[D]").astype("datetime64[us]"))
        raw = {name: pd.DataFrame({self.ticker: np.array(values)}, index) for name, values in columns.items()}
        try:
            tables, faults = validate(raw, real_moves=[f"{self.ticker}:{day}" for day in self.real_moves])
        except FaultyPrices as error:
            problems = [
                Problem(field="close", rule=fault.rule, date=fault.date, message=fault.detail) for fault in error.faults
            ]
            raise BadRequest(*problems[:MOST_PROBLEMS]) from None
        except DataError as error:
            rule, _, message = str(error).partition(": ")
            raise refuse("dates", message, rule=rule) from None
        # A last session without a price, or one before the first, is not filled: training drops it as well.
        checked = {name: table[self.ticker] for name, table in tables.items()}
        known = np.logical_and.reduce([column.notna() for column in checked.values()])
        prices = {name: column[known] for name, column in checked.items()}
        own = {name: pd.DataFrame({self.ticker: np.array(values)}, index) for name, values in self.columns.items()}
        fitted, carried = fit_columns(own, prices["close"].to_frame())
        return prices | {name: table[self.ticker] for name, table in fitted.items()}, summarize([*faults, *carried])


class WindowsBody(Body):
    """Windows as the model was trained on, scaled: x[window][row]... of numbers."""

    x: Annotated[list[Any], Field(min_length=1, max_length=MOST_WINDOWS)]

    def windows(self, predictor: Predictor) -> np.ndarray:
        """Return X [batch, window, *row]. Raises BadRequest for another shape, and for numbers that are not finite."""
        recipe = predictor.recipe
        expected, numbers = [recipe.window, *recipe.row], recipe.test_output.numbers.size
        if len(self.x) * numbers > MOST_NUMBERS:
            most = max(MOST_NUMBERS // numbers, 1)
            raise refuse("x", f"has {len(self.x)} windows, this model accepts at most {most} at once")
        x = _to_array(self.x, expected)
        if not np.isfinite(x).all():
            at = np.argwhere(~np.isfinite(x))[0]
            raise refuse(_place(at), "is not finite")
        with np.errstate(over="ignore", invalid="ignore"):
            rows = x.astype(recipe.row_dtype)
        if not (np.isfinite(rows).all() if rows.dtype.kind == "f" else (rows == x).all()):
            raise refuse("x", f"has numbers that do not fit {recipe.row_dtype}")
        return rows


def _to_array(x: list[Any], expected: list[int]) -> np.ndarray:
    """Return an array of lists of the expected lengths in lists, with numbers in the last ones.

    Checked before NumPy sees them, which makes room for the longest text as often as there are items: 367 GB for a
    mebibyte.
    """
    level, shape = x, [len(x)]
    for size in expected:
        for number, part in enumerate(level):
            if not isinstance(part, list) or len(part) != size:
                held = f"{len(part)} items" if isinstance(part, list) else "no list"
                message = f"has {held}; expected windows of {expected}, here a list of {size}"
                raise refuse(_place(np.unravel_index(number, shape)), message)
        level = list(chain.from_iterable(level))
        shape.append(size)
    for number, leaf in enumerate(level):
        if type(leaf) not in (int, float):  # nor bool, null or "1.5"
            raise refuse(_place(np.unravel_index(number, shape)), f"is not a number; expected {expected}")
    try:
        return np.array(level, dtype=np.float64).reshape(shape)
    except OverflowError:
        raise refuse("x", "has an integer that is too large") from None


def _place(at: Iterable[np.integer]) -> str:
    return "x" + "".join(f"[{place}]" for place in at)


class Answer(BaseModel):
    """The model that gave the answer."""

    model: str
    run: str
    version: str


class ForecastValues(BaseModel):
    """A forecast of one ticker, made at the close of `as_of` for the close of `session`."""

    ticker: str
    as_of: date
    session: date
    forecast: float
    unit: str
    naive: dict[str, float]
    """Naive forecasts that the model has to beat."""
    repairs: list[str]


class LoggedForecast(ForecastValues):
    """The answer with what only the log gets: the number of returns that it is made of, and their traces."""

    days: int = Field(exclude=True)
    traces: list[float] = Field(exclude=True)


class Forecast(ForecastValues, Answer):
    """A forecast of one ticker, made at the close of `as_of` for the close of `session`."""


class Forecasts(Answer):
    """Forecasts of several tickers, in the order of the request."""

    forecasts: list[ForecastValues]


class Outputs(Answer):
    """A model's outputs [window, ...]."""

    outputs: list[Any]


def input_fields(predictor: Predictor) -> tuple[str, ...]:
    """Return the prices and further columns that the model's features are made of."""
    if isinstance(names := predictor.recipe.state.get("columns"), list):
        return tuple(map(str, names))
    return ("close",) if predictor.recipe.features <= set(CLOSE_FEATURES) else ("close", *OHLCV)


def list_own_columns(predictor: Predictor) -> list[str]:
    """Return the further columns among them."""
    return [name for name in input_fields(predictor) if name not in {"close", *OHLCV}]


def minimum_days(predictor: Predictor) -> int:
    """Return how many prices a forecast needs: for the features of a window, and for the last return."""
    state, window, least = predictor.recipe.state, predictor.recipe.window, predictor.recipe.horizon + 1
    if isinstance(history := state.get("history"), int):  # of columns that are computed
        return max(history, least)
    past = state.get("past", WARM_UP)
    return max((past if isinstance(past, int) else WARM_UP) + window, least)


def find_refusal(predictor: Predictor) -> str:
    """Return why no request can give what the model's features need; empty where one can."""
    across = predictor.recipe.state.get("across")
    if predictor.recipe.state.get("whole"):
        return "columns of this model depend on all days before; send tickers, whose prices the server has"
    if not isinstance(across, list) or not across:
        return ""
    return (
        f"column {across[0]} of this model depends on other tickers, and prices in a request are of one; send tickers, "
        "whose prices the server has, or windows to /v1/windows"
    )


def can_answer(predictor: Predictor, kind: type) -> bool:
    """Return whether the task is of a kind that a path needs; for forecasts also whether it was trained on prices."""
    return isinstance(predictor.task, kind) and (kind is not Forecasting or bool(predictor.recipe.features))


def describe_needs(predictor: Predictor) -> dict[str, object]:
    """Return what a request for a forecast has to hold, and why none can, if so. None for a model of other data."""
    of_prices = bool(predictor.recipe.features)
    return {
        "columns": input_fields(predictor) if of_prices else None,
        "history": minimum_days(predictor) if of_prices else None,
        "refuses": find_refusal(predictor),
    }


def _refuse_missing(name: str) -> NoReturn:
    if name in OHLCV:
        raise refuse(name, "this model has features of open, high, low and volume")
    raise refuse(f"columns.{name}", f"this model has a feature of column {name}; send its numbers")


def answer(predictor: Predictor, body: Prices, prices: data_prices.Prices | None) -> dict[str, object]:
    """Return the forecast that a body asks for, or those of its tickers, with what only the log gets.

    `prices` are the server's. Raises BadRequest.
    """
    if not (tickers := body.known()):
        return _log(forecast(predictor, body))
    if prices is None:
        raise refuse("tickers", "the server has no prices for this model")
    answers = [_log(values) for values in forecast_known(predictor, prices, tickers)]
    return {"forecasts": answers} if body.tickers else answers[0]


def _log(values: LoggedForecast) -> dict[str, object]:
    return {
        **values.model_dump(mode="json"),
        "logged": {"days": values.days, **dict(zip(TRACES, values.traces, strict=True))},
    }


def forecast(predictor: Predictor, body: Prices) -> LoggedForecast:
    """Return what the model says of these prices, without its name and version. Raises BadRequest."""
    task, dataset = predictor.task, predictor.recipe.dataset
    names = dataset.state.get("features")
    if not isinstance(task, Forecasting) or not names:
        raise refuse("close", "this model was not trained on prices; see GET /v1/models")
    if refusal := find_refusal(predictor):
        raise refuse("close", refusal)
    fields, repairs = body.fields()
    if missing := [name for name in input_fields(predictor) if name not in fields]:
        _refuse_missing(missing[0])
    close, least = fields["close"], minimum_days(predictor)
    if len(close) < least:
        raise refuse("close", f"has {len(close)} prices, this model needs {least}", rule="too_short")
    output = predictor.outputs(task.encode(fields, dataset))
    return _describe(predictor, body.ticker, fields, output, repairs)


def forecast_known(predictor: Predictor, prices: data_prices.Prices, tickers: Sequence[str]) -> list[LoggedForecast]:
    """Return what the model says of tickers whose prices the server has. Raises BadRequest for one that it has not."""
    task, dataset = predictor.task, predictor.recipe.dataset
    if unknown := [name for name in tickers if name not in prices.tickers]:
        problems = [Problem(field="tickers", message=f"no prices of {name}; see /v1/prices") for name in unknown]
        raise BadRequest(*problems[:MOST_PROBLEMS])
    assert isinstance(task, Forecasting)
    assert isinstance(task, Remembering)
    least = minimum_days(predictor)
    first = None if predictor.recipe.state.get("whole") else -least - DAYS_ENDED
    recent = prices.select(slice(first, None), None if find_refusal(predictor) else tickers)
    closes = {name: recent.close[name].dropna() for name in tickers}
    if short := [name for name in tickers if len(closes[name]) < least]:
        raise refuse("tickers", f"{short[0]} has fewer than {least} recent prices", rule="too_short")
    try:
        outputs = predictor.outputs(task.encode_tickers(recent, tickers, dataset))
    except DataError as error:
        raise refuse("tickers", str(error)) from None
    return [
        _describe(predictor, name, _fields_of(recent, name), outputs[number : number + 1], [])
        for number, name in enumerate(tickers)
    ]


def _fields_of(prices: data_prices.Prices, ticker: str) -> dict[str, pd.Series]:
    """Return the fields of a ticker, on the days on which it has prices."""
    return {name: table[ticker][prices.close[ticker].notna()] for name, table in prices.fields.items()}


def _describe(
    predictor: Predictor, ticker: str, fields: Mapping[str, pd.Series], output: np.ndarray, repairs: list[str]
) -> LoggedForecast:
    """Return the forecast of one ticker. Raises BadRequest for one that is not finite."""
    task, dataset, least = predictor.task, predictor.recipe.dataset, minimum_days(predictor)
    assert isinstance(task, Forecasting)
    close = fields["close"]
    if isinstance(task, Relative):
        value, naive = task.answer(output, fields, dataset)
    else:
        value, naive = float(task.forecast(output, dataset)[0]), task.naive(close, dataset)
    as_of = close.index[-1]
    if not math.isfinite(value):
        raise refuse("close", "leads to a forecast that is not finite")
    return LoggedForecast(
        ticker=ticker,
        as_of=as_of.date(),
        session=sessions.after(as_of, dataset.state["horizon"]).date(),
        forecast=value,
        unit=task.unit,
        naive=naive,
        repairs=repairs,
        days=least - 1,
        traces=trace_returns(np.diff(np.log(close.to_numpy()[-least:]))).tolist(),
    )
