"""The data pipeline end to end: prices -> features -> splits -> normaliser -> copies -> windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from sp500.config import DataConfig
from sp500.data import augment, leaks, normalize
from sp500.data.augment import Augmentation
from sp500.data.columns import BUILT_IN, Hooks, build, compute_features, find_first
from sp500.data.features import CLOSE_FEATURES, Features, Series, columns_of
from sp500.data.normalize import Normalizer
from sp500.data.prices import Prices
from sp500.data.shards.writer import SeriesSource
from sp500.data.sources import load
from sp500.data.sources.headings import FIELDS
from sp500.data.splits import Split, split
from sp500.data.validation import summarize
from sp500.data.windows import Dataset, Windows, compute_naive_output, memory_error, windows
from sp500.errors import DataError
from sp500.formatting import fixed
from sp500.runs.results import DataCard
from sp500.suspicion import bound_correlation

COLUMN_OF = {"gap": "open", "range": "high or low", "volume_change": "volume"}
"""Columns of prices that features are made from; all others from the close."""
FEWEST_DAYS = 3
SAME = 0.95
"""Correlation with a target of the task's own above which a column is taken for the target."""


@dataclass(frozen=True)
class Prepared:
    """Prices cut by date, with what was fitted on the training part. Windows are made from it.

    `train`: each ticker's series up to the last training date; nothing that is copied comes from elsewhere.
    """

    config: DataConfig
    prices: Prices
    table: Features
    cut: Split
    train: tuple[Series, ...]
    scaler: Normalizer
    target_scale: float
    naive_output: float
    """See `Dataset`."""
    how: Augmentation
    direction: bool
    fitted: Mapping[str, Any] = field(default_factory=dict)
    """What `Hooks.fit` found."""

    def source(self) -> SeriesSource:
        """Return the source from which shards of the training part are written."""
        multiplier, window = self.config.multiplier, self.config.window
        return SeriesSource(self.train, multiplier, self.how, self.scaler, self.target_scale, window, self.direction)

    def dataset(self, dtype: str, *, multiplier: int | None = None) -> Dataset:
        """Return train (with its copies), validation and test windows. Raises DataError for a part without windows."""
        copies = augment.copies(self.train, multiplier or self.config.multiplier, self.how)
        parts = {
            "train": self._windows(copies, self.cut.train, dtype, index=(multiplier or self.config.multiplier) == 1),
            "valid": self._windows(self.table.series, self.cut.valid, dtype, index=True) if self.cut.valid else None,
            "test": self._windows(self.table.series, self.cut.test, dtype, index=True),
        }
        counts = {name: len(part) for name, part in parts.items() if part is not None}
        if empty := [name for name, count in counts.items() if not count]:
            raise DataError(
                f"too_short: no windows of {self.config.window} days for {', '.join(empty)}; use more dates"
            )
        assert parts["train"] is not None
        assert parts["test"] is not None
        later = {name: part.rows for name, part in parts.items() if part is not None and name != "train"}
        shifts = normalize.shift_notes(self.table.names, parts["train"].rows, later)
        card = describe(self.prices, self.table, self.cut, self.config.horizon)
        card["windows"] = counts
        card["notes"] += shifts
        names = {"features": list(self.table.names), "horizon": self.config.horizon}
        return Dataset(
            parts["train"],
            parts["valid"],
            parts["test"],
            self.target_scale,
            self.naive_output,
            card,
            state={**names, **self.scaler.state, **self.table.state, **self.fitted},
        )

    def materialise(self, dtype: str) -> Dataset:
        """Return the dataset with all training windows copied out, for scripts that keep arrays [window, day, feature].

        Raises MemoryError that says how much they need.
        """
        length, source = self.config.window, self.source()
        needed = source.windows * length * source.features * np.dtype(dtype).itemsize
        small = self.dataset(dtype, multiplier=1)
        try:
            x = np.empty((source.windows, length, source.features), dtype)
        except MemoryError as error:
            raise memory_error(source.windows, needed) from error
        targets, done = np.empty(len(x), dtype), 0
        for series in augment.copies(self.train, self.config.multiplier, self.how):
            part = self._windows([series], self.cut.train, dtype, index=False)
            end = done + len(part)
            views = np.lib.stride_tricks.sliding_window_view(part.rows, length, axis=0)[part.starts]
            x[done:end], targets[done:end], done = views.transpose(0, 2, 1), part.targets, end
        train = Windows(x.reshape(-1, source.features), np.arange(done) * length, targets, length)
        return replace(small, train=train, card={**small.card, "windows": small.card["windows"] | {"train": done}})

    def _windows(
        self, series: Iterable[Series], span: tuple[np.datetime64, np.datetime64], dtype: str, *, index: bool
    ) -> Windows:
        scaled = (replace(ticker, x=self.scaler(ticker.x)) for ticker in series)
        length, horizon = self.config.window, self.config.horizon
        part = windows(scaled, span, length, horizon=horizon, dtype=dtype, with_index=index)
        targets = (part.targets > 0) if self.direction else part.targets / self.target_scale
        return replace(part, targets=targets.astype(dtype))


def prepare(config: DataConfig, *, direction: bool, hooks: Hooks | None = None) -> Prepared:
    """Return the prices of `config`, cut and fitted.

    Targets are log returns divided by their training standard deviation (not with norm none), or 1 for up and 0 for
    not. Raises DataError.
    """
    prices, table = read(config, hooks)
    return fit(prices, table, config, direction=direction, hooks=hooks)


def read(config: DataConfig, hooks: Hooks | None = None) -> tuple[Prices, Features]:
    """Return prices and features. Columns and targets that a user computes are tried for leaks. Raises DataError."""
    hooks = hooks or Hooks(config.features)
    prices = load(config, columns=hooks.columns)
    if hooks.review:
        prices = hooks.review(prices)
    # Before holes are refused: the last row of a column that looks ahead is one.
    needs = hooks.needs or (_probe(prices, hooks, config) if hooks.features or hooks.target else {})
    table = build(prices, config.horizon, hooks)
    return prices, replace(table, state={**table.state, **needs})


def _probe(prices: Prices, hooks: Hooks, config: DataConfig) -> Mapping[str, object]:
    """Try columns and target for leaks, and return what a request needs for columns that are computed."""
    days = pd.DatetimeIndex(prices.close.index)
    first = find_first(compute_features(prices, hooks))
    dates = days[first:].to_numpy().astype("datetime64[D]")
    rows = leaks.choose_rows(days, dates[0], _cut(dates, config), config.horizon)
    if hooks.target:
        leaks.probe_target(prices, hooks, rows, config.horizon)
    return leaks.probe_features(prices, hooks, rows, config.window) if hooks.features else {}


def _cut(dates: np.ndarray, config: DataConfig) -> Split:
    return split(
        dates,
        test_fraction=config.test_fraction,
        valid_from_train=config.valid_from_train,
        gap=config.purge,
    )


def fit(
    prices: Prices,
    table: Features,
    config: DataConfig,
    *,
    direction: bool,
    cut: Split | None = None,
    hooks: Hooks | None = None,
) -> Prepared:
    """Return the same as `prepare`, from given prices and features, cut by `config` or by `cut`."""
    cut = cut or _cut(table.dates, config)
    if config.augment == "bootstrap" and (table.names[:6] != CLOSE_FEATURES or table.series[0].returns is not None):
        raise DataError("data.augment bootstrap resamples returns for the built-in columns and target; take noise")
    train = tuple(
        early for series in table.series if len((early := until(series, cut.train[1])).dates) >= config.window
    )
    if not train:
        raise DataError(f"too_short: no ticker has data.window = {config.window} days before {cut.train[1]}")
    rows = np.concatenate([series.x for series in train])
    spread = float(np.nanstd(np.concatenate([series.y for series in train])))
    scale = 1.0 if direction or config.norm == "none" or spread == 0 else spread
    targets = np.concatenate([series.y[config.window - 1 :] for series in train])  # those of windows
    naive_output = compute_naive_output(targets / scale, direction=direction)
    if hooks and hooks.constant:
        naive_output = hooks.constant(targets[np.isfinite(targets)] / scale)
    how = Augmentation(config.augment, config.noise, config.jitter, rows.std(axis=0), config.seed, config.horizon)
    scaler = normalize.fit(rows, config.norm)
    fitted = hooks.fit(_list_known(train, config.window)) if hooks and hooks.fit else {}
    return Prepared(config, prices, table, cut, train, scaler, scale, naive_output, how, direction, fitted)


def _list_known(train: Iterable[Series], window: int) -> pd.DataFrame:
    """Return target and known columns of all training windows."""
    tables = [pd.DataFrame({"target": series.y, **series.known})[window - 1 :] for series in train]
    return pd.concat(tables, ignore_index=True).dropna(subset="target")


def last_window(fields: Mapping[str, pd.Series], dataset: Dataset, hooks: Hooks | None = None) -> np.ndarray:
    """Return X [1, window, feature] of the last days of one ticker, with the features and the scaling of the training.

    `fields` are its prices by name, `dataset` the recipe's: its `state` has the names of the features and the scaling.
    A feature looks back WARM_UP days at most, so that more prices than these and a window change no bit of it.
    """
    scaler = Normalizer(np.array(dataset.state["shift"]), np.array(dataset.state["scale"]))
    if hooks and (hooks.features or hooks.names):
        name_of = str(fields["close"].name or "ticker")  # columns may depend on it
        tables = {name: column.to_frame(name_of) for name, column in fields.items()}
        own = {name: tables.pop(name) for name in [*tables] if name not in FIELDS}
        computed = compute_features(Prices(tables, "the request", columns=own), hooks)
        known = {name: table.to_numpy(float)[:, 0] for name, table in computed.items()}
    else:
        known = columns_of({name: column.to_numpy(float) for name, column in fields.items()})
    rows = np.column_stack([known[name][-dataset.window :] for name in dataset.state["features"]])
    return scaler(rows).astype(dataset.train.rows.dtype)[None]


def last_windows(prices: Prices, tickers: Sequence[str], dataset: Dataset, hooks: Hooks) -> np.ndarray:
    """Return X [ticker, window, feature] of the last days of tickers, by columns that may depend on all of `prices`.

    Raises DataError for a ticker that has not all of its columns on these days.
    """
    scaler = Normalizer(np.array(dataset.state["shift"]), np.array(dataset.state["scale"]))
    tables = compute_features(prices, hooks)
    windows = []
    for ticker in tickers:
        days = prices.close[ticker].dropna().index[-dataset.window :]
        rows = np.column_stack([tables[name][ticker].reindex(days) for name in dataset.state["features"]])
        if len(rows) < dataset.window or not np.isfinite(rows).all():
            raise DataError(f"too_short: {ticker} has not all columns on its last {dataset.window} days")
        windows.append(scaler(rows))
    return np.stack(windows).astype(dataset.train.rows.dtype)


def summary(table: Features) -> dict[str, dict[str, float]]:
    """Return count, mean, deviation, smallest and largest value of each feature over all tickers and dates."""
    rows = pd.DataFrame(np.concatenate([series.x for series in table.series]), columns=list(table.names))
    statistics = rows.agg(["count", "mean", "std", "min", "max"])
    return {str(name): {str(key): float(value) for key, value in statistics[name].items()} for name in statistics}


def until(series: Series, last: np.datetime64) -> Series:
    """Return the series up to a date, so that nothing later can leak into what is computed from it."""
    end = int(np.searchsorted(series.dates, last, side="right"))
    returns = None if series.returns is None else series.returns[:end]
    known = {name: column[:end] for name, column in series.known.items()}
    return Series(series.ticker, series.dates[:end], series.x[:end], series.y[:end], returns, known)


def describe(prices: Prices, table: Features, cut: Split, horizon: int) -> DataCard:
    """Return the data card: source of the prices, their number and dates, and what was repaired."""
    close = prices.close
    spans = {"train": cut.train, "valid": cut.valid, "test": cut.test}
    return {
        "source": prices.source,
        "sha256": prices.sha256,
        "tickers": prices.tickers,
        "rows": int(close.notna().sum().sum()),
        "first_date": f"{close.index[0]:%Y-%m-%d}",
        "last_date": f"{close.index[-1]:%Y-%m-%d}",
        "features": list(table.names),
        "splits": {name: [str(day) for day in span] for name, span in spans.items() if span},
        "repairs": summarize(prices.faults),
        "notes": [*prices.notes, *leak_notes(table, cut.train[1], horizon), *target_notes(table, cut.train[1])],
    }


def leak_notes(table: Features, last: np.datetime64, horizon: int) -> list[str]:
    """Return a note on each feature that knows too much of the next return up to a date, with its column of prices.

    By the larger of Pearson's and Spearman's correlation with the return of the next day and with the target. That of
    the last return with the next is the autocorrelation, which is strong if a column holds returns and not prices.
    """
    strongest: dict[str, tuple[float, list[str]]] = {}
    for series in (until(whole, last) for whole in table.series):
        targets = [(series.y if series.returns is None else series.returns, horizon)]
        if "log_return" in table.names:
            targets.insert(0, (np.append(series.x[1:, table.names.index("log_return")], np.nan), 1))
        figures = _find_suspicious(series.x, targets)
        for name, figure in zip(table.names, figures, strict=True):
            if figure:
                before, tickers = strongest.get(name, (0.0, []))
                strongest[name] = max(before, figure, key=abs), [*tickers, series.ticker]
    if not strongest:
        return []
    ranked = sorted(strongest.items(), key=lambda item: -abs(item[1][0]))
    listed = "; ".join(
        (f"{name} (column {COLUMN_OF.get(name, 'close')})" if name in BUILT_IN else name)
        + f" {fixed(figure)} in {tickers[0]}"
        + (f" and {len(tickers) - 1} more" if len(tickers) > 1 else "")
        for name, (figure, tickers) in ranked
    )
    return [
        f"Suspicious correlation with the next return: {listed}. In daily prices it is within 0.2: see whether the "
        "column holds values of the next day, or returns in place of prices."
    ]


def target_notes(table: Features, last: np.datetime64) -> list[str]:
    """Return a note that names each column that nearly is the task's own target, up to a date.

    Such targets may be persistent, as volatility is, so that strong correlations with them are usual.
    """
    notes = []
    for number, name in enumerate(table.names):
        for series in (until(whole, last) for whole in table.series if whole.returns is not None):
            known = np.isfinite(series.y)
            if known.sum() < FEWEST_DAYS or not np.ptp(series.x[known, number]) or not np.ptp(series.y[known]):
                continue
            correlation = float(np.corrcoef(series.x[known, number], series.y[known])[0, 1])
            if abs(correlation) > SAME:
                notes.append(
                    f"Suspicious correlation with the target: {name} {fixed(correlation)} in {series.ticker}. See "
                    "whether the column holds what is to be forecast."
                )
                break
    return notes


def _find_suspicious(x: np.ndarray, targets: Iterable[tuple[np.ndarray, int]]) -> np.ndarray:
    """Return the largest correlation [feature] of x [day, feature] with targets [day], or 0 below the bound."""
    largest = np.zeros(x.shape[1])
    for target, horizon in targets:
        known = np.isfinite(target)
        if known.sum() < FEWEST_DAYS:
            continue
        both = pd.DataFrame(np.column_stack([x[known], target[known]]))
        with np.errstate(invalid="ignore", divide="ignore"):  # a constant feature has none
            every = [np.corrcoef(values, rowvar=False)[-1, :-1] for values in (both, both.rank())]
        for correlations in every:
            high = np.abs(correlations) > bound_correlation(int(known.sum()), horizon)
            largest = np.where(high & (np.abs(correlations) > np.abs(largest)), correlations, largest)
    return largest
