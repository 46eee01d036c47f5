"""Settings of prices, windows and split."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sp500.config.frozen import AgentFiles, Alias, Frozen, setting

PRICES = AgentFiles(frozenset({".csv", ".parquet", ".pq"}), frozenset({"bundled", "yfinance"}))


class DataConfig(Frozen):
    """Which prices, which windows, which split."""

    source: str = setting("bundled", agents=PRICES)
    """bundled (real prices, offline) | yfinance | path of a CSV or Parquet file."""
    tickers: Annotated[tuple[str, ...], Alias("--tickers")] = setting((), agents=True)
    """Names of series; `stocks`: all but the index. None given: the index, or all that a file holds."""
    start: date | None = setting(None, agents=True)
    """First date. Default: all there is (bundled stocks: 1996-01-01, earlier prices are too coarsely rounded)."""
    end: date | None = setting(None, agents=True)
    """Last date. Default: all there is."""
    features: tuple[str, ...] = setting((), agents=True)
    """Columns that a forecast sees: built-in ones, and columns of numbers of a long file. Default: all built-in ones
    that the prices allow."""
    window: int = setting(30, gt=0, agents=True)
    """Days of features that one forecast sees."""
    horizon: int = setting(1, gt=0, agents=True)
    """Days ahead that are forecast."""
    test_fraction: float = setting(0.15, gt=0, lt=1, agents=True)
    """Last part of the dates, held out for the test."""
    valid_from_train: float = setting(0.175, ge=0, lt=1, agents=True)
    """Last part of the remaining dates (or of X_train) used for validation; 0: no validation."""
    loaders: int = Field(0, ge=0)
    """Processes per worker that read samples of `sp500.from_torch`; 0: the worker itself."""
    gap: int | None = setting(None, ge=1, agents=True)
    """Sessions left out between two splits. Default and minimum: window + horizon."""
    norm: Literal["zscore", "minmax", "none"] = setting("zscore", agents=True)
    """Feature scaling, fitted on the training dates only."""
    shuffle_train: bool = setting(True, agents=True)
    """Training windows come in a new order in every epoch; --data.no-shuffle-train keeps their order."""
    seed: int = setting(0, ge=0, agents=True)
    """Seed of the batch order and of noisy copies: the same for every config of a search."""
    multiplier: Annotated[int, Alias("--multiplier")] = setting(1, gt=0, agents=True)
    """Size of the training set: the original and multiplier - 1 noisy copies of the training data."""
    augment: Literal["noise", "bootstrap"] = setting("noise", agents=True)
    """How copies differ: noise on the features, or a price path of resampled daily returns."""
    noise: float = setting(0.1, ge=0, agents=True)
    """Noise of a copy, in training standard deviations of each feature; of text the share of bytes drawn again."""
    jitter: float = setting(0.0, ge=0, agents=True)
    """Standard deviation of a factor around 1 per copy and feature."""
    npz_path: Path | None = setting(None, agents=AgentFiles(frozenset({".npz"})))
    """Arrays X_train, y_train, X_test, y_test (X: samples, window, features) in place of prices."""
    real_moves: tuple[Annotated[str, Field(pattern=r"^[^:]+:\d{4}-\d{2}-\d{2}$")], ...] = setting((), agents=True)
    """TICKER:YYYY-MM-DD of large moves that really happened and are no fault in the data."""
    cache_dir: Path = Path("~/.cache/sp500")
    """Where downloaded prices are kept."""
    fallback: Annotated[Literal["bundled"] | None, Alias("--fallback")] = setting(None, agents=True)
    """What to use when a download fails and nothing is cached. Default: end with the error."""

    @field_validator("tickers")
    @classmethod
    def _capitalize(cls, names: tuple[str, ...], earlier: Any) -> tuple[str, ...]:
        """Write the names of the bundled prices and of Yahoo as these do, so that `aapl` and `AAPL` are one setting."""
        names = tuple(name.strip() for name in names)
        has_capitals = earlier.data.get("source") in ("bundled", "yfinance")
        return tuple(name.upper() if has_capitals and name != "stocks" else name for name in names)

    @field_validator("valid_from_train", mode="before")
    @classmethod
    def _switch_means_fraction(cls, value: Any) -> Any:
        """Accept the switch of earlier settings files: true is the default fraction, false is none."""
        return {True: 0.175, False: 0.0}[value] if isinstance(value, bool) else value

    @field_validator("features")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"duplicate column {', '.join(twice)}; name each once")
        return names

    @model_validator(mode="after")
    def _gap_purges(self) -> DataConfig:
        if self.gap is not None and self.gap < self.window + self.horizon:
            raise ValueError(
                f"data.gap is {self.gap}, below window + horizon = {self.window + self.horizon}: a training "
                "target would lie inside a validation window; leave data.gap empty"
            )
        if self.features and self.npz_path:
            raise ValueError("data.features names columns of prices, which data.npz_path replaces; leave one out")
        if self.start and self.end and self.start >= self.end:
            raise ValueError(f"data.start {self.start} is not before data.end {self.end}")
        return self

    @property
    def purge(self) -> int:
        """Sessions between two splits."""
        return self.gap if self.gap is not None else self.window + self.horizon

    @property
    def identity(self) -> dict[str, object]:
        """The settings that decide windows of prices: files by their names."""
        later = set() if self.features else {"features"}  # older runs do not have it
        return self.model_dump(mode="json", exclude={"cache_dir", "fallback", "loaders"} | later) | {
            "gap": self.purge,
            "source": Path(self.source).name,
            "npz_path": self.npz_path and self.npz_path.name,
        }

    @property
    def order(self) -> dict[str, object]:
        """The settings that decide the order of the windows in training."""
        return self.model_dump(include={"seed", "shuffle_train"})

    @property
    def cut(self) -> dict[str, object]:
        """The settings that decide which windows are held out."""
        return self.model_dump(include={"test_fraction", "valid_from_train"})

    @property
    def copies(self) -> dict[str, object]:
        """The settings that decide the noisy copies; empty without any."""
        return self.model_dump(include={"multiplier", "augment", "noise", "jitter"}) if self.multiplier > 1 else {}
