"""The steps of a search: prepare the data, choose an arm, run the trials, train the best once more."""

from __future__ import annotations

import itertools
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from sp500 import metrics
from sp500.config import OwnModel, RunConfig
from sp500.errors import attempt
from sp500.plugins import contract
from sp500.runs.record import RunRecord
from sp500.runs.results import ChosenConfig, SearchSummary
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult, read_trials
from sp500.studies import search, train
from sp500.studies.searched import Searched, open_ledger
from sp500.tasks import catalog
from sp500.tuning import trial_data
from sp500.tuning.arm import Arm, Collector
from sp500.tuning.arm_costs import Costs
from sp500.tuning.limits import Plan
from sp500.tuning.packing.scheduler import PackedArm
from sp500.tuning.presets import OPTIONS
from sp500.tuning.sequential import STATES, SequentialArm
from sp500.tuning.space import ConfigTrial, Space, candidates, trial, valid
from sp500.tuning.suggest import load_method
from sp500.tuning.trial_data import Datasets, TrialData

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay

EXACT = 2.0
"""The factor to which the expected seconds are good."""


def prepare(config: RunConfig, plan: Plan) -> tuple[RunConfig, Datasets]:
    """Return the settings with their task, and the data that the trials share. Raises DataError if there is none."""
    base = catalog.resolve(config)
    if isinstance(base.model, OwnModel):
        searched = {name.removeprefix(OPTIONS): None for name in plan.space.axes if name.startswith(OPTIONS)}
        contract.load_model(base.model.own, base.model.options | searched)
    return base, trial_data.prepare(_data_configs(base, plan.space))


def expect_costs(plan: Plan, base: RunConfig, data: Datasets, ray: BackgroundRay | None) -> Costs | None:
    """Return the seconds that are expected of the search; None if they decide nothing."""
    return Costs(plan, base, data, None if ray is None else ray.count_cpus()) if plan.arm == "auto" else None


def choose_arm(
    plan: Plan, base: RunConfig, run: Run, data: Datasets, ray: BackgroundRay | None, *, costs: Costs | None = None
) -> Arm[ConfigTrial]:
    """Return the arm that the plan names; for auto the one that should end first, and log the reason."""
    name = plan.arm
    if name == "auto":
        assert costs is not None
        name, reason = costs.choose(read_trials(run.path))
        print(f"mode {name}: {reason}", file=sys.stderr, flush=True)
    if name == "ray":
        from sp500.distributed.tune import RayArm

        assert ray is not None
        return RayArm(base, data, plan.limits, run, ray)
    if ray is not None:
        ray.end()  # before this process forks
    return {"sequential": SequentialArm, "packed": PackedArm}[name](base, data, plan.limits, run.path / STATES)


def run_trials(
    arm: Arm[ConfigTrial],
    base: RunConfig,
    run: Run,
    plan: Plan,
    data: Datasets,
    *,
    costs: Costs | None = None,
    on_start: Callable[[int, int], None] = lambda total, done: None,
    on_result: Callable[[TrialResult, int], None] = lambda result, running: None,
) -> Searched:
    """Run the trials that the run's ledger does not hold. Raises ConfigError for a ledger of another space.

    The first results correct `costs`, and a line says so.
    """
    suggested = load_method(plan.method)(candidates(base, plan.space), plan.trials, base.train.seed)
    ledger = open_ledger(run.path, trial_data.hash_all(data), plan.space)
    done, started = len(ledger.results), time.monotonic()
    run.write_plan(suggested.total)
    on_start(suggested.total, done)

    uncorrected = costs

    def keep(result: TrialResult, running: int) -> None:
        """Pass the result on, and correct what is expected once about a pack has ended in every process."""
        nonlocal uncorrected
        on_result(result, running)
        ended = len(ledger.results)
        if uncorrected and arm.cores * result.pack <= ended - done < suggested.total - done:
            _correct(uncorrected, arm, list(ledger.results.values()))
            uncorrected = None

    arm.run(Collector(suggested, ledger, arm, keep, plan.limits.stop))
    shutil.rmtree(run.path / STATES, ignore_errors=True)
    return Searched(plan, ledger, done, arm, time.monotonic() - started, plan.limits.stop)


def _correct(costs: Costs, arm: Arm[ConfigTrial], results: Collection[TrialResult]) -> None:
    """Report what the rest of the search should take, if it is far from what was expected, and the arm for it."""
    factor = costs.compare(results)
    if factor is None or 1 / EXACT < factor < EXACT:
        return
    best, reason = costs.choose(results)
    hint = "; stopped and resumed, it continues in mode ray" if best == "ray" != arm.name else ""
    print(reason + hint, file=sys.stderr, flush=True)


def train_best(base: RunConfig, run: Run, plan: Plan, data: Datasets, searched: Searched) -> RunRecord:
    """Train the best by validation loss once more, as this run, and only then look at the test.

    Raises SP500Error when all trials failed.
    """
    best = searched.ledger.choose_best()
    chosen = trial(base, best.overrides).config
    ready = data[trial_data.key(chosen)]
    assert isinstance(ready, TrialData)
    record = train.train(chosen, run, experiment="tune", arm=searched.arm.name, dataset=ready.dataset)
    return _add_search(record, plan, data, searched, best)


def log(run: Run, space: Space, results: Iterable[TrialResult]) -> None:
    """Write the file that optuna-dashboard opens. Only the ledger counts, so an error is only a warning."""
    from sp500.tuning import optuna_log  # 0.9 s, which trials need not wait for

    path = run.path / "optuna.db"

    def warn(error: Exception) -> None:
        """Warn of what the database raises, which has no common class."""
        reason = " ".join(str(error).split())
        logging.getLogger(__name__).warning("%s is not written (%.200s); trials.jsonl has all results", path, reason)

    attempt(lambda: optuna_log.write(path, run.name, space, results), warn)


def _data_configs(config: RunConfig, space: Space) -> list[RunConfig]:
    """Return a config for each of the space's settings of the data."""
    axes = search.data_axes(space)
    rows = itertools.product(*(axis.values for axis in axes.values()))
    configs = [valid(config, dict(zip(axes, row, strict=True))) for row in rows]
    return [candidate.config for candidate in configs if candidate]  # invalid configs are never tried


def _add_search(record: RunRecord, plan: Plan, data: Datasets, searched: Searched, best: TrialResult) -> RunRecord:
    """Return the chosen config's record with the facts of the search."""
    results = searched.ledger.results
    sharpes = [result.valid_excess_sharpe for result in results.values() if result.status == "ok"]
    excess = record.metrics.get("valid", {}).get("excess")
    summary: SearchSummary = {
        **searched.summarize(best, trial_data.hash_all(data)),
        "halving": plan.limits.halving,
        "packs": _list_packs(results.values()),
        "cpu_share": _cpu_share(results.values()) if record.device == "cpu" else None,
        "by_dataset": _best_by_dataset(results.values()),
        "deflated_sharpe": metrics.deflated_excess(excess, sharpes),
    }
    samples = record.samples + sum(result.samples for result in results.values())
    setup = record.seconds.setup - searched.seconds
    spent = record.seconds.model_copy(update={"setup": setup, "search": searched.seconds})
    machine = record.machine.model_copy(update={"cluster": dict(searched.arm.cluster)})
    return record.model_copy(update={"search": summary, "samples": samples, "seconds": spent, "machine": machine})


def _cpu_share(results: Iterable[TrialResult]) -> float | None:
    """Return CPU seconds of the trials over their seconds, of those that have both."""
    pairs = [(result.cpu_seconds, result.seconds) for result in results if result.cpu_seconds is not None]
    seconds = sum(wall for _, wall in pairs)
    return sum(cpu for cpu, _ in pairs) / seconds if seconds else None


def _list_packs(results: Iterable[TrialResult]) -> list[int]:
    """Return the sizes of the packs that the configs trained in, largest first; an unfinished one counts as one."""
    members = Counter(result.pack for result in results)
    return [size for size in sorted(members, reverse=True) for _ in range(-(-members[size] // size))]


def _best_by_dataset(results: Iterable[TrialResult]) -> list[ChosenConfig]:
    """Return the best config of each set of data, best first."""
    best: dict[str, TrialResult] = {}
    scored = (result for result in results if result.score is not None)
    for result in sorted(scored, key=lambda result: result.score_or_infinity):
        best.setdefault(result.dataset, result)
    return [{"dataset": name, **result.choice} for name, result in best.items()]
