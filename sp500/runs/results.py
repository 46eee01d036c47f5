"""Results of the experiments, as typed plain data: it is kept in a run's record and shown by the report.

Dictionaries, since they are JSON; numbers that are not known are None.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from sp500.runs.details import Breakdown

Metrics = dict[str, Any]
"""Numbers by name, which depend on the task; `NAME_interval` is the 95% interval [low, high] of NAME."""
Overrides = dict[str, Any]
"""Settings by key (`model.hidden`) that a config of a search has in place of the base's."""
Splits = dict[str, list[str]]
"""First and last date of train, valid and test."""


class ShardFacts(TypedDict):
    """A set of shards that a run trained on."""

    uri: str
    fingerprint: str
    files: int
    windows: int
    bytes: int
    reused: bool
    writing_seconds: float
    dropped: list[str]
    """Damaged shards that were left out."""


class DataCard(TypedDict, total=False):
    """The source of a run's data; data that is made, or comes as arrays, has no prices and no dates."""

    source: str
    sha256: str
    """Hash of the prices or arrays."""
    tickers: list[str]
    rows: int  # prices
    first_date: str
    last_date: str
    features: list[str]
    splits: Splits
    windows: dict[str, int]
    """Of train, valid and test."""
    repairs: list[str]
    notes: list[str]
    bytes: dict[str, int]
    """Of a text in tokens: bytes that the targets of each split represent."""
    naive_bits: dict[str, float]
    """Of a text in tokens: bits per byte of the test by naive method."""
    shards: ShardFacts
    feature_summary: dict[str, dict[str, float]]
    """Of prepare.py: count, mean, deviation, smallest and largest value of each feature."""


class Improvement(TypedDict):
    """Share by which a model's error is below that of the best naive forecast, with a 95% interval."""

    over: str  # name of the naive forecast
    metric: str  # mse | error_rate | ...
    value: float | None
    low: float | None
    high: float | None


class Refit(TypedDict):
    """The training data of the judged model of a run with train.refit."""

    epochs: int
    windows: int
    splits: Splits
    """`train` ends with the last validation date."""


class SeedRow(TypedDict):
    """One seed of a run with several."""

    seed: int
    best_epoch: int
    test: Metrics


class FoldDates(TypedDict):
    """The dates of a fold of a walk-forward run."""

    fold: int  # counted from 1
    splits: Splits
    blind: bool | None
    """False: the choice of the config used dates of the fold's test or later."""


class FoldRow(FoldDates):
    """One fold of a walk-forward run; a failed one has no numbers."""

    status: Literal["ok", "failed"]
    reason: str
    seconds: float | None
    windows: NotRequired[dict[str, int]]
    best_epoch: NotRequired[int]
    epochs: NotRequired[int]
    refit: NotRequired[Refit | None]
    samples: NotRequired[int]
    improvement: NotRequired[Improvement]
    test: NotRequired[Metrics]
    naive: NotRequired[dict[str, Metrics]]
    breakdown: NotRequired[Breakdown | None]
    device: NotRequired[str]
    peak_worker_bytes: NotRequired[int]


class Spread(TypedDict):
    """One metric over the folds."""

    mean: float
    deviation: float | None
    count: int


class ScaleRow(TypedDict):
    """The result of one arm of a scale experiment at one size."""

    multiplier: int
    arm: str
    place: str
    """machine (one machine, simulated nodes included) | cluster"""
    hardware: str
    """The machine, or a worker node of the cluster."""
    settings: str
    """Fingerprint at multiplier 1: rows that share it differ in size, arm and place alone."""
    status: str
    reason: str
    num_workers: int
    simulated_nodes: int
    cores: int
    windows: int | None
    samples: int
    seconds: float
    setup_seconds: float
    writing_seconds: float
    """The part of the setup that wrote shards, which the next run with the same data does not pay."""
    train_seconds: float
    samples_per_second: float | None
    warm_samples_per_second: float | None
    epoch_rates: list[float]
    """Windows per second of each epoch."""
    epoch_seconds: float | None
    """A whole pass at the warm rate, also if fewer steps were taken."""
    memory_limit_bytes: int
    memory_watched: NotRequired[bool]
    """Whether the limit was watched and not enforced, as on macOS; absent if it was enforced."""
    others_share: NotRequired[float | None]  # as in ArmRow
    peak_memory_bytes: int | None
    peak_worker_bytes: int | None
    bytes_on_disk: int | None
    best_epoch: int | None
    metric: str
    test_error: float | None
    """By `metric`: mse, error_rate, bits_per_byte."""
    suspicious: NotRequired[str]  # as `suspicion.find_signs` gives it
    run: str


class Law(TypedDict):
    """An arm's seconds as fixed_seconds + windows / samples_per_second."""

    arm: str
    place: str
    fixed_seconds: float
    samples_per_second: float
    largest_miss: float
    """Share by which it misses the seconds of one of the runs, at most."""


class BreakEven(TypedDict):
    """From how many windows trained Ray is sooner than one process; None: at no size."""

    workers: int
    place: str
    windows: float | None
    alone: Law
    ray: Law


class Speedup(TypedDict):
    """Ray's speed with a number of workers over that with the fewest."""

    place: str
    workers: int
    samples_per_second: float
    speedup: float
    efficiency: float


class StrongScaling(Speedup):
    """The same set on more workers."""

    multiplier: float


class WeakScaling(Speedup):
    """A set that grows with the workers."""

    multiplier_per_worker: float


class ChosenConfig(TypedDict):
    """A config of a search and its validation loss."""

    dataset: NotRequired[str]
    id: str
    overrides: Overrides
    valid_loss: float
    score: float | None
    """The loss as a share of the naive one."""


class DeflatedSharpe(TypedDict):
    """The distance of the best Sharpe ratio of several tries from luck (`metrics.deflated_excess`)."""

    sharpe: float | None
    days_apart: int
    trials: int
    expected_max: float | None
    probability: float | None


class ArmRow(TypedDict):
    """One arm of a search (`compare.split_seconds`)."""

    others_share: NotRequired[float | None]
    """Share of this machine's cores that other processes took."""
    cpu_share: NotRequired[float | None]
    """CPU seconds of its trials as a share of their seconds."""

    seconds: float | None
    cpu_seconds: float | None
    cores: int
    configs: int
    trials_per_second: float | None
    start_seconds: float | None
    work_seconds: float | None
    speedup_over_sequential: NotRequired[float | None]
    speedup_over_packed: NotRequired[float | None]


class ConfigsOnCores(TypedDict):
    """From how many configs Ray Tune is sooner on so many cores; None: at no number."""

    cores: int
    configs: float | None


class SearchBreakEven(TypedDict):
    """The cores, and the configs, with which Ray Tune is as fast as packs without it."""

    cores: float | None
    """For as many configs as were tried; None: Ray's start alone takes longer."""
    configs: list[ConfigsOnCores]


class SearchComparison(TypedDict):
    """The arms of one search; what needs an arm that did not run is None."""

    configs: int | None
    arms: dict[str, ArmRow] | None
    packing_speedup: float | None
    ray_speedup: float | None
    same_best: bool | None
    metric_gap: float | None
    """Largest relative gap of the best validation losses."""
    break_even: SearchBreakEven | None


class SearchSummary(TypedDict):
    """Facts of a search; one in all modes also has `runs` (by arm) and the keys of `SearchComparison`."""

    space: str
    method: str
    """The method by which configs were chosen."""
    key: str
    """Same key: same configs on the same data."""
    configs: int
    failed: int
    resumed: int  # configs that were not run again
    rerun: int
    """Configs that were run again."""
    trial_seconds: float
    """Of all trials."""
    cores: int
    halving: NotRequired[int]
    stopped: NotRequired[dict[int, int]]  # configs that --stop ended, by epoch
    metric: NotRequired[str]
    """Of a program of the user's: the name of its metric; a loss is that, or its negative with `maximize`."""
    maximize: NotRequired[bool]
    cpu_share: NotRequired[float | None]  # as in ArmRow
    packs: NotRequired[list[int]]  # their sizes, largest first
    best: ChosenConfig
    by_dataset: list[ChosenConfig]
    deflated_sharpe: DeflatedSharpe | None
    runs: NotRequired[dict[str, str]]
    arms: NotRequired[dict[str, ArmRow] | None]
    packing_speedup: NotRequired[float | None]
    ray_speedup: NotRequired[float | None]
    same_best: NotRequired[bool | None]
    metric_gap: NotRequired[float | None]
    break_even: NotRequired[SearchBreakEven | None]


class LeftOut(TypedDict):
    """A run that a forecast does not use."""

    run: str
    why: str


class ForecastRow(TypedDict):
    """The forecast for a number of workers; None if nothing was measured."""

    workers: int
    seconds: float | None
    seconds_low: float | None
    seconds_high: float | None
    speedup: float
    """Over one worker."""
    efficiency: float
    """Speed-up per worker, 0 to 1."""
    cost: float | None
    cost_low: float | None
    cost_high: float | None
    measured: float | None


class Basis(TypedDict):
    """The runs that a forecast uses, and their law; without runs the rest is not there."""

    used: list[str]
    left_out: list[LeftOut]
    workers: NotRequired[list[int]]
    place: NotRequired[str]
    samples: NotRequired[int]
    start_seconds: NotRequired[float]
    start_seconds_per_worker: NotRequired[float]
    work_seconds: NotRequired[float]
    contention: NotRequired[float]
    coherency: NotRequired[float]
    assumed: NotRequired[list[str]]
    varies: NotRequired[float]
    repeats: NotRequired[int]
    node_type: NotRequired[str | None]


class Backtest(TypedDict):
    """The law's forecast for the most workers, fitted without them, next to the measurement."""

    fitted_on: list[int]
    predicted: int
    seconds: float
    seconds_low: float
    seconds_high: float
    measured: float  # mean of those runs with the most windows
    error_percent: float
    within: bool  # its range


class Forecast(TypedDict):
    """A forecast for more workers."""

    rows: list[ForecastRow]
    basis: Basis
    assumption: str
    backtest: Backtest | None
    currency: str | None
