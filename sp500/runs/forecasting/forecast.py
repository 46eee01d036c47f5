"""What more workers would buy: seconds, speed-up, efficiency and cost per number of workers, from ended runs.

Only runs of the same settings on the same kind of machine stand in one fit, however many windows they trained on; all
others are named with the reason. Seconds are those of the break-even: a start, and windows at the warm rate. Where
nothing was measured, a stated default is given and called one. The forecast is tested on what is known: fitted without
the most workers, it predicts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from statistics import fmean, median

from sp500.config import Frozen
from sp500.runs import cost
from sp500.runs.cost import Pods, RateTable
from sp500.runs.experiments import Experiment
from sp500.runs.forecasting import usl
from sp500.runs.forecasting.observations import Observation, choose_runs, counts, most, pace, place, shared_cores
from sp500.runs.record import RunRecord
from sp500.runs.results import Backtest, Basis, Forecast, ForecastRow, LeftOut

NEWEST = 5
ALIKE = 0.01
"""By what share numbers of windows may differ that count as the same."""
SAME, OTHER = 1.25, 2.0
"""How many times longer or shorter a job may take than runs with as many workers, and with another number of them."""


class Question(Frozen):
    """What is asked."""

    experiment: Experiment = "scale"
    """Whose runs."""
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of workers, above zero."""
    size: int | None = None
    """Windows to train on; None: as many as the newest run."""
    node_type: str = ""
    """Type of the table of rates that a worker's node is of. Default: that of the runs."""
    spot: bool = False
    """Whether workers are spot machines."""


def forecast(records: Sequence[RunRecord], asked: Question, table: RateTable | None) -> Forecast:
    """A row per number of workers. Raises KeyError for a node type that the table lacks."""
    used, left_out = choose_runs(records, asked.experiment)
    currency = table.currency if table else None
    if not used:
        rows = [_default(workers) for workers in asked.workers]
        basis: Basis = {"used": [], "left_out": left_out}
        return {"rows": rows, "basis": basis, "assumption": _nothing(asked), "backtest": None, "currency": currency}
    newest = max(used, key=lambda run: run.finished)
    samples = asked.size or newest.samples
    fitted = fit(used, samples)
    rows = [_row(fitted, used, workers, samples) for workers in asked.workers]
    node_type = None
    if table:
        rows = [_with_costs(row, newest.record, asked, table) for row in rows]
        node_type = asked.node_type or cost.worker(newest.record, table).node_type
    return {
        "rows": rows,
        "basis": {**_basis(used, left_out, fitted, samples), "node_type": node_type},
        "assumption": _assumption(used, fitted, asked),
        "backtest": backtest(used),
        "currency": currency,
    }


def fit(used: Sequence[Observation], samples: int) -> usl.Fit:
    """The law of runs of one key for so many windows; draws of its bootstrap are the same each time."""
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
    """Fitted without the most workers, what the law says of them, against what was measured; None for one number."""
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
    """Seconds that a job of an experiment's script may take, from start to end, by the newest runs that ended well.

    Those with as many workers count, with some room; else all, with more. None where no such run has ended. A run of
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
    """What runs with so many workers took that trained on so many windows; the last batch may differ."""
    alike = [run for run in used if isclose(run.samples, samples, rel_tol=ALIKE)]
    return [run.seconds for run in alike if run.workers == workers]


def _row(fitted: usl.Fit, used: Sequence[Observation], workers: int, samples: int) -> ForecastRow:
    seconds, (low, high) = fitted.law.seconds(workers), fitted.interval(workers)
    speedup = fitted.law.seconds(1) / seconds
    took = _seconds(used, workers, samples)
    return {
        "workers": workers,
        "seconds": seconds,
        "seconds_low": low,
        "seconds_high": high,
        "speedup": speedup,
        "efficiency": speedup / workers,
        "cost": None,
        "cost_low": None,
        "cost_high": None,
        "measured": median(took) if took else None,
    }


def _default(workers: int) -> ForecastRow:
    speedup = usl.default(workers)
    return {
        "workers": workers,
        "seconds": None,
        "seconds_low": None,
        "seconds_high": None,
        "speedup": speedup,
        "efficiency": speedup / workers,
        "cost": None,
        "cost_low": None,
        "cost_high": None,
        "measured": None,
    }


def _with_costs(row: ForecastRow, newest: RunRecord, asked: Question, table: RateTable) -> ForecastRow:
    """The row with the cost of its seconds, on nodes like the newest run's or of the type asked for."""
    workers = row["workers"]
    if asked.node_type:
        size = table.types[asked.node_type].node.model_dump()
        pods = (Pods(**size, count=workers, node_type=asked.node_type, spot=asked.spot), *cost.around(table))
    elif cost.is_rented(newest):
        node = cost.worker(newest, table)
        pods = (node.model_copy(update={"count": workers, "spot": asked.spot or node.spot}), *cost.around(table))
    else:
        pods = (cost.worker(newest, table),)
    low, middle, high = (
        None if seconds is None else cost.amount(pods, seconds, table)
        for seconds in (row["seconds_low"], row["seconds"], row["seconds_high"])
    )
    return {**row, "cost": middle, "cost_low": low, "cost_high": high}


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
        sentences.append(f"{more}; the law is taken to go on")
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
