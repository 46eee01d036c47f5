"""Forecast what more workers would buy: seconds, speed-up, efficiency and cost per number of workers, from ended runs.

Only runs of the same settings on the same kind of machine are in one fit, however many windows they trained on; all
others are named with the reason. Seconds are those of the break-even: a start, and windows at the warm rate. Where
nothing was measured, a stated default is used and called one. The forecast is tested on what is known: fitted without
the most workers, it predicts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isclose
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.formatting import some
from sp500.runs import compare, cost, usl
from sp500.runs.cost import Pods, RateTable
from sp500.runs.experiments import Question
from sp500.runs.record import RunRecord
from sp500.runs.results import Backtest, Basis, Forecast, ForecastRow, LeftOut
from sp500.runs.scaling import fixed_seconds

NEWEST = 5
ALIKE = 0.01
"""By what share numbers of windows may differ that count as the same."""
Span = tuple[float | None, float | None, float | None]
UNKNOWN: Span = (None, None, None)
"""From, expected and to."""
SAME, OTHER = 1.25, 2.0
"""How many times longer or shorter a job may take than runs with as many workers, and with another number of them."""
APART = {"train": {"epochs": 1, "max_steps": 0, "early_stop_patience": 0}, "data": {"multiplier": 1}}
"""Settings in which runs of one law may differ: they decide on how many windows a run trains, and nothing else."""


def forecast(records: Sequence[RunRecord], asked: Question, table: RateTable | None) -> Forecast:
    """Return a row per number of workers. Raises KeyError for a node type that the table lacks."""
    used, left_out = choose_runs(records, asked.experiment)
    currency = table.currency if table else None
    if not used:
        rows = [_row(workers, usl.default(workers)) for workers in asked.workers]
        basis: Basis = {"used": [], "left_out": left_out}
        return {"rows": rows, "basis": basis, "assumption": _nothing(asked), "backtest": None, "currency": currency}
    newest = max(used, key=lambda run: run.finished)
    samples = asked.size or newest.samples
    fitted = fit(used, samples)
    node_type = None
    if table:
        node_type = asked.node_type or cost.worker(newest.record, table).node_type
    return {
        "rows": [_forecast_row(fitted, used, workers, samples, asked=asked, table=table) for workers in asked.workers],
        "basis": {**_basis(used, left_out, fitted, samples), "node_type": node_type},
        "assumption": _assumption(used, fitted, asked),
        "backtest": backtest(used),
        "currency": currency,
    }


def fit(used: Sequence[Observation], samples: int) -> usl.Fit:
    """Fit the law to runs of one key for so many windows; draws of its bootstrap are the same each time."""
    whole = most(used)
    workers, start = [run.workers for run in used], [run.start for run in used]
    groups: dict[tuple[str, int], list[Observation]] = {}
    for run in used:
        groups.setdefault((run.record.fingerprint, run.workers), []).append(run)
    varies = (
        usl.variation([run.start for run in repeats] for repeats in groups.values()),
        usl.variation([run.work for run in repeats] for repeats in groups.values()),
    )
    of_search = used[0].record.search is not None  # whose trials wait for nothing
    work, sigma = [each * whole for each in pace(used)], 0.0 if of_search else usl.SIGMA
    fitted = usl.fit(workers, start, work, varies=varies, sigma=sigma, cores=shared_cores(used))
    return fitted.scale(samples / whole)


def backtest(used: Sequence[Observation]) -> Backtest | None:
    """Compare the law, fitted without the most workers, with what was measured there; None for one number of them."""
    *fewer, last = counts(used)
    if not fewer:
        return None
    known = [run for run in used if run.workers == last]
    fitted = fit([run for run in used if run.workers != last], most(known))
    took = fmean(_seconds(known, last, most(known)))
    predicted, (low, high) = fitted.law.seconds(last), fitted.interval(last)
    return {
        "fitted_on": fewer,
        "predicted": last,
        "seconds": predicted,
        "seconds_low": low,
        "seconds_high": high,
        "measured": took,
        "error_percent": 100 * (predicted / took - 1),
        "within": low <= took <= high,
    }


def estimate(records: Sequence[RunRecord], experiment: str, workers: int) -> tuple[float, float] | None:
    """Return the seconds that a job of an experiment's script may take, by the newest runs that ended well.

    Those with as many workers count, with some room; else all, with more. None if no such run has ended. A run of
    the scale experiment is all of its arms.
    """
    whole = [
        record
        for record in records
        if record.experiment == experiment and record.status == "ok" and not record.seconds.earlier
    ]
    jobs = [record for record in whole if record.arm in cost.PARTS] if experiment == "scale" else whole
    alike = [record for record in jobs if record.num_workers == workers]
    taken = [record.seconds.total for record in (alike or jobs)[-NEWEST:]]
    room = SAME if alike else OTHER
    return (min(taken) / room, max(taken) * room) if taken else None


def _seconds(used: Sequence[Observation], workers: int, samples: int) -> list[float]:
    """Return the seconds of runs with so many workers that trained on so many windows; the last batch may differ."""
    alike = [run for run in used if isclose(run.samples, samples, rel_tol=ALIKE)]
    return [run.seconds for run in alike if run.workers == workers]


def _forecast_row(
    fitted: usl.Fit,
    used: Sequence[Observation],
    workers: int,
    samples: int,
    *,
    asked: Question,
    table: RateTable | None,
) -> ForecastRow:
    seconds, (low, high) = fitted.law.seconds(workers), fitted.interval(workers)
    costs = UNKNOWN
    if table:
        pods = _pods(max(used, key=lambda run: run.finished).record, workers, asked, table)
        costs = (cost.amount(pods, low, table), cost.amount(pods, seconds, table), cost.amount(pods, high, table))
    took = _seconds(used, workers, samples)
    return _row(workers, fitted.law.seconds(1) / seconds, (low, seconds, high), costs, median(took) if took else None)


def _row(
    workers: int, speedup: float, seconds: Span = UNKNOWN, costs: Span = UNKNOWN, measured: float | None = None
) -> ForecastRow:
    return {
        "workers": workers,
        "seconds": seconds[1],
        "seconds_low": seconds[0],
        "seconds_high": seconds[2],
        "speedup": speedup,
        "efficiency": speedup / workers,
        "cost": costs[1],
        "cost_low": costs[0],
        "cost_high": costs[2],
        "measured": measured,
    }


def _pods(newest: RunRecord, workers: int, asked: Question, table: RateTable) -> tuple[Pods, ...]:
    """Return the pods of so many workers: nodes like the newest run's, or of the requested type."""
    if asked.node_type:
        size = table.types[asked.node_type].node.model_dump()
        return (Pods(**size, count=workers, node_type=asked.node_type, spot=asked.spot), *cost.around(table))
    node = cost.worker(newest, table)
    if not cost.is_rented(newest):
        return (node,)
    return (node.model_copy(update={"count": workers, "spot": asked.spot or node.spot}), *cost.around(table))


def _basis(used: Sequence[Observation], left_out: list[LeftOut], fitted: usl.Fit, samples: int) -> Basis:
    law = fitted.law
    return {
        "used": [run.record.name for run in used],
        "left_out": left_out,
        "workers": counts(used),
        "place": place(used[-1].record),
        "samples": samples,
        "start_seconds": law.start,
        "start_seconds_per_worker": law.joining,
        "work_seconds": law.work,
        "contention": law.sigma,
        "coherency": law.kappa,
        "assumed": list(fitted.fixed),
        "varies": fitted.varies.share,
        "repeats": fitted.varies.freedom,
    }


def _assumption(used: Sequence[Observation], fitted: usl.Fit, asked: Question) -> str:
    there, where = counts(used), place(used[-1].record)
    only = f"only {' and '.join(map(str, there))} {'worker was' if there == [1] else 'workers were'} measured"
    sentences = [f"Not fitted, since {only}: {'; '.join(fitted.fixed.values())}"] if fitted.fixed else []
    if max(asked.workers) > there[-1]:
        more = f"More than {there[-1]} {'worker was' if there[-1] == 1 else 'workers were'} not measured"
        sentences.append(f"{more}; the law is assumed to continue")
    if not cost.is_rented(used[-1].record):
        sentences.append(
            f"All runs shared {where.removeprefix('simulated nodes on ')}: this is what more workers would do there, "
            "which divide the work by its cores at most, and not what more machines would buy"
        )
    return " ".join(f"{sentence}." for sentence in sentences)


def _nothing(asked: Question) -> str:
    return (
        f"No run of {asked.experiment} with workers has ended well, so no seconds and no cost are given. The speed-up "
        f"assumes that {usl.SIGMA:.0%} of the work waits in line and the rest divides: "
        f"N / (1 + {usl.SIGMA} (N - 1)). Run the experiment with 1 and 2 workers to measure it."
    )


@dataclass(frozen=True)
class Observation:
    """One run as the law sees it."""

    record: RunRecord
    workers: int
    start: float
    """Seconds that do not grow with the windows, without writing shards, which the next run does not pay."""
    work: float
    """Seconds that do: all windows at the warm rate; if a run has none, all after the start; of a search what
    its trials took together, over its workers."""

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """The key that runs of one fit share: settings and data, device, kind of machine, whether the rate is warm."""
        record = self.record
        settings = str(record.search["key"]) if record.search else _law_settings(record)
        return settings, record.device, place(record), _is_warm(record)

    @property
    def samples(self) -> int:
        """Windows trained on."""
        return self.record.samples

    @property
    def seconds(self) -> float:
        """From start to end, without writing shards."""
        return self.start + self.work

    @property
    def finished(self) -> datetime:
        """The time of its end."""
        return self.record.finished


def choose_runs(records: Sequence[RunRecord], experiment: str) -> tuple[list[Observation], list[LeftOut]]:
    """Return the runs of one key with the most numbers of workers, the newest such; and why others are left out."""
    groups: dict[tuple[str, str, str, bool], list[Observation]] = {}
    left_out: list[LeftOut] = []
    timed = compare.timings(records)
    for record in records:
        if record.experiment != experiment or record.arm in cost.PARTS:
            continue
        observation = observe(record, timed.get(record.name, {}))
        if isinstance(observation, str):
            left_out.append({"run": record.name, "why": observation})
        else:
            groups.setdefault(observation.key, []).append(observation)
    if not groups:
        return [], left_out
    best = max(groups.values(), key=lambda group: (len(counts(group)), max(other.finished for other in group)))
    others = [other for group in groups.values() if group is not best for other in group]
    left_out += [{"run": other.record.name, "why": _difference(other, best[0])} for other in others]
    return best, left_out


def observe(record: RunRecord, timed: Mapping[str, Any]) -> Observation | str:
    """Return a run with workers that ended well at one go, or the reason why it is none.

    Of a search the workers are the cores that its trials ran on side by side; its start and its work are those of the
    report's break-even, by the outer clock `timed` if there was one.
    """
    search, seconds = record.search, record.seconds
    if record.status != "ok":
        return f"ended as {record.status}"
    if seconds.earlier or (search and search["resumed"]):
        return "was interrupted"
    workers = int(search["cores"]) if search and record.arm == "ray" else record.num_workers
    if not workers:
        return "has no workers (one process)"
    shards = record.data.get("shards")
    writing = shards["writing_seconds"] if shards else 0.0
    if _is_warm(record) and record.warm_samples_per_second:
        rate = record.warm_samples_per_second
        start, work = fixed_seconds(seconds.total, writing, record.samples, rate), record.samples / rate
    elif search:
        _, begun, together = compare.split_seconds(record, timed)
        start, work = begun or 0.0, (together or 0.0) / workers
    else:
        work = seconds.total - seconds.setup
        start = seconds.total - work - writing
    if work <= 0 or start <= 0 or not record.samples:
        return "has no seconds of start and training"
    return Observation(record, workers, start, work)


def pace(used: Sequence[Observation]) -> list[float]:
    """Return the seconds of work per window of each run, as they are with the most windows.

    Short epochs have a lower rate, since each waits for its first batch. So speeds are compared among runs of one size,
    that with the most numbers of workers; runs of the largest size tell by how much these take more or less there.
    """
    sizes: dict[str, list[Observation]] = {}
    for run in used:
        sizes.setdefault(run.record.fingerprint, []).append(run)
    alike = max(sizes.values(), key=lambda group: (len(counts(group)), most(group)))
    at, there = _per_window(alike), _per_window(max(sizes.values(), key=most))
    both = [there[workers] / at[workers] for workers in at if workers in there]
    times = median(both) if both else 1.0
    own = [run.work / run.samples for run in used]
    return [
        mine * times if run in alike else at[run.workers] * times if run.workers in at else mine
        for run, mine in zip(used, own, strict=True)
    ]


def most(used: Sequence[Observation]) -> int:
    """Return the windows of the run with the most."""
    return max(run.samples for run in used)


def place(record: RunRecord) -> str:
    """Return the kind of machine that a run ran on, in words."""
    if cost.is_rented(record):
        cpus = record.machine.cluster.get("worker_CPU")
        return f"a cluster's nodes of {some(cpus, 'CPU')}" if cpus else "a cluster"
    cores = f"the {some(record.machine.cpus, 'core')} of one machine"
    return f"simulated nodes on {cores}" if record.machine.simulated_nodes else cores


def shared_cores(used: Sequence[Observation]) -> float:
    """Return the cores shared by the workers of all these runs; infinite on a cluster, which adds nodes for workers."""
    newest = used[-1].record
    return math.inf if cost.is_rented(newest) else newest.machine.cpus


def counts(used: Sequence[Observation]) -> list[int]:
    """Return the numbers of workers that were measured, fewest first."""
    return sorted({run.workers for run in used})


def _difference(other: Observation, best: Observation) -> str:
    names = ("other settings or data", "another device", "another kind of machine", "a rate measured otherwise")
    return ", ".join(name for name, mine, theirs in zip(names, other.key, best.key, strict=True) if mine != theirs)


def _per_window(group: Sequence[Observation]) -> dict[int, float]:
    """Return seconds of work per window, the median of each number of workers."""
    every = {workers: [run for run in group if run.workers == workers] for workers in counts(group)}
    return {workers: median(run.work / run.samples for run in ones) for workers, ones in every.items()}


def _is_warm(record: RunRecord) -> bool:
    return bool(record.warm_samples_per_second) and not record.search


def _law_settings(record: RunRecord) -> str:
    """Return a hash of the settings without those that set APART, and with those that this version does not know."""
    try:
        config = RunConfig.model_validate(record.config)
        parts = {name: getattr(config, name).model_copy(update=values) for name, values in APART.items()}
        return config.model_copy(update=parts).fingerprint
    except (ValidationError, ConfigError):  # also a task or model of the user's, whose file is not here
        return record.fingerprint
