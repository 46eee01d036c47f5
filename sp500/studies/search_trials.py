"""A search from its settings to its record: try configs, choose by validation, look at the test once."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event

from sp500 import metrics
from sp500.config import RunConfig, kinds
from sp500.errors import ConfigError, SP500Error
from sp500.machine.memory import limit_memory
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.results import ChosenConfig, SearchSummary
from sp500.runs.store import Run
from sp500.runs.trials import Ledger, TrialResult
from sp500.studies import train
from sp500.tuning import optuna_log, sequential, trial_data
from sp500.tuning.limits import Plan
from sp500.tuning.packing import processes
from sp500.tuning.space import Choice, Space, key, trial, valid
from sp500.tuning.suggest import Suggester, suggester
from sp500.tuning.trial_data import NO_VALIDATION, TrialData

# Configs that TPE is asked for at once: about a pack for each of a few cores.
GUESSES_AT_ONCE = 8
DECIDE_DATA = ("data.", "task", *(f"{kind.section}." for kind in kinds.tasks().values() if kind.section), "train.dtype")


def prepare(config: RunConfig, plan: Plan) -> dict[str, TrialData | str]:
    """The data of the search. Raises ConfigError for a search without validation, DataError when none can be made."""
    if config.task_kind.from_prices and not config.data.valid_from_train:
        raise ConfigError(NO_VALIDATION)
    return trial_data.prepare(_data_configs(config, plan.space))


@dataclass(frozen=True)
class Searched:
    """What a search found: its ledger, how many trials that held before, the cores that trials ran on at once, what
    the cluster has if Ray ran it, and seconds.
    """

    ledger: Ledger
    resumed: int
    cores: int
    cluster: dict[str, float]
    seconds: float


def search(
    config: RunConfig,
    run: Run,
    plan: Plan,
    data: dict[str, TrialData | str],
    *,
    on_start: Callable[[int, int], None] = lambda total, done: None,
    on_result: Callable[[TrialResult, int], None] = lambda result, running: None,
) -> Searched:
    """Try the configs. Trials that the run's ledger holds are not run again.

    `on_start` is told how many there are in all and how many are done, `on_result` of each result and how many are on
    their way.
    """
    suggested = suggester(plan.method, config, plan.space, plan.trials, config.train.seed)
    ledger = _ledger(run, plan.space, data, suggested)
    done, started = len(ledger.results), time.monotonic()
    run.write_plan(suggested.total)
    on_start(suggested.total, done)

    def keep(result: TrialResult, running: int) -> None:
        ledger.add(result)
        suggested.tell(result)
        on_result(result, running)

    cores, cluster = _try_all(config, run, plan, data, suggested, keep=keep, left=suggested.total - done)
    return Searched(ledger, done, cores, cluster, time.monotonic() - started)


def choose(
    config: RunConfig,
    run: Run,
    plan: Plan,
    data: dict[str, TrialData | str],
    searched: Searched,
    *,
    stopped: Event,
) -> RunRecord:
    """Train the best by validation loss once more, as this run, and only then look at the test.

    Ends at the next epoch once `stopped` is set. Raises SP500Error when all trials failed.
    """

    def go_on(epoch: EpochMetrics) -> None:
        if stopped.is_set():
            raise SP500Error(f"stopped after epoch {epoch.epoch}")

    best = searched.ledger.best()
    if best is None:
        reasons = [f"  {result.overrides}: {result.reason}" for result in searched.ledger.results.values()]
        raise SP500Error("\n".join([f"all {len(reasons)} trials failed:", *reasons[:5]]))
    chosen = trial(config, best.overrides).config
    ready = data[trial_data.key(chosen)]
    assert isinstance(ready, TrialData)
    record = train.train(chosen, run, experiment="tune", arm=plan.arm, dataset=ready.dataset, on_epoch=go_on)
    return _with_search(record, plan, data, searched, best)


def log(run: Run, plan: Plan, results: Iterable[TrialResult] = ()) -> None:
    """Add results to the file that optuna-dashboard opens; the ledger is what counts, so a fault is only told."""
    path = run.path / "optuna.db"
    try:
        optuna_log.write(path, run.name, plan.space, results)
    except Exception as error:  # noqa: BLE001 - what a damaged, foreign or locked file raises has no common class
        cause: BaseException = error
        while cause.__cause__:  # optuna's own words for a locked file are "invalid data"
            cause = cause.__cause__
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        logging.getLogger(__name__).warning(
            "%s could not be written (%.200s). trials.jsonl has all results; close what holds the file, or delete it",
            path,
            reason,
        )


def _with_search(
    record: RunRecord, plan: Plan, data: dict[str, TrialData | str], searched: Searched, best: TrialResult
) -> RunRecord:
    """The chosen config's record, and what the search that chose it did."""
    results = searched.ledger.results
    sharpes = [result.valid_excess_sharpe for result in results.values() if result.status == "ok"]
    excess = record.metrics.get("valid", {}).get("excess")
    summary = SearchSummary(
        space=plan.space.name,
        method=plan.method,
        key=key(results, _hash(data)),
        configs=len(results),
        failed=sum(result.status != "ok" for result in results.values()),
        resumed=searched.resumed,
        rerun=searched.ledger.rerun,
        trial_seconds=sum(result.seconds for result in results.values()),
        cores=searched.cores,
        halving=plan.limits.halving,
        packs=_list_packs(results.values()),
        cpu_share=_cpu_share(results.values()) if record.device == "cpu" else None,
        best=_describe(best),
        by_dataset=_best_by_dataset(results.values()),
        deflated_sharpe=metrics.deflated_excess(excess, sharpes),
    )
    samples = record.samples + sum(result.samples for result in results.values())
    setup = record.seconds.setup - searched.seconds
    spent = record.seconds.model_copy(update={"setup": setup, "search": searched.seconds})
    machine = record.machine.model_copy(update={"cluster": searched.cluster})
    return record.model_copy(update={"search": summary, "samples": samples, "seconds": spent, "machine": machine})


def _cpu_share(results: Iterable[TrialResult]) -> float | None:
    """CPU seconds of the trials over their seconds, of those that tell both."""
    told = [(result.cpu_seconds, result.seconds) for result in results if result.cpu_seconds is not None]
    seconds = sum(wall for _, wall in told)
    return sum(cpu for cpu, _ in told) / seconds if seconds else None


def _list_packs(results: Iterable[TrialResult]) -> list[int]:
    """Sizes of the packs that the configs trained in, largest first; one that did not end whole counts as one."""
    members = Counter(result.pack for result in results)
    return [size for size in sorted(members, reverse=True) for _ in range(-(-members[size] // size))]


def _ledger(run: Run, space: Space, data: dict[str, TrialData | str], suggested: Suggester) -> Ledger:
    """What an earlier attempt found, told to the suggester. Raises ConfigError for results of another space."""
    ledger = Ledger(run.path, _hash(data))
    for result in ledger.results.values():
        if not space.contains(result.overrides):
            raise ConfigError(f"{ledger.path} holds trials of another space than {space.name}; take another --name")
        suggested.tell(result)
    return ledger


def _data_configs(config: RunConfig, space: Space) -> list[RunConfig]:
    """A config for each of the space's settings of the data."""
    axes = {name: axis for name, axis in space.axes.items() if name.startswith(DECIDE_DATA)}
    values = []
    for name, axis in axes.items():
        if not isinstance(axis, Choice):
            raise ConfigError(f"search space {space.name}: {name} decides the data; list its values, no range")
        values.append(axis.values)
    configs = [valid(config, dict(zip(axes, chosen, strict=True))) for chosen in itertools.product(*values)]
    return [candidate.config for candidate in configs if candidate]  # invalid configs are never tried


def _hash(data: dict[str, TrialData | str]) -> str:
    """Hash of all data of a search; that of the one dataset where there is one. What could not be made has none."""
    hashes = [part.dataset.sha256 for part in data.values() if isinstance(part, TrialData)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(json.dumps(sorted(hashes)).encode()).hexdigest()


def _best_by_dataset(results: Iterable[TrialResult]) -> list[ChosenConfig]:
    """The best config of each set of data, best first."""
    best: dict[str, TrialResult] = {}
    for result in sorted(
        (result for result in results if result.score is not None), key=lambda result: result.score or 0.0
    ):
        best.setdefault(result.dataset, result)
    return [{"dataset": name, **_describe(result)} for name, result in best.items()]


def _describe(result: TrialResult) -> ChosenConfig:
    assert result.valid_loss is not None
    return {"id": result.id, "overrides": result.overrides, "valid_loss": result.valid_loss, "score": result.score}


def _try_all(
    config: RunConfig,
    run: Run,
    plan: Plan,
    data: dict[str, TrialData | str],
    suggested: Suggester,
    *,
    keep: Callable[[TrialResult, int], None],
    left: int,
) -> tuple[int, dict[str, float]]:
    """Hand each trial's result to `keep`. Returns the cores that trials ran on, and what the cluster has under Ray."""
    limits = plan.limits
    at_once = GUESSES_AT_ONCE if plan.method == "tpe" else left
    if plan.arm == "sequential":
        if limits.timeout and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"trial_timeout {limits.timeout:g}: mode sequential ends a trial by a signal, which reaches the main "
                "thread alone, and this is another; take mode packed, or call search in the main thread"
            )
        if limits.memory:
            limit_memory(limits.memory)
        while trials := suggested.ask(1):
            keep(sequential.run_trial(data[trial_data.key(trials[0].config)], trials[0], limits.timeout), 0)
        return 1, {}
    if plan.arm == "packed":
        count = processes.process_count(config)
        processes.run(data, suggested, limits, at_once=at_once, processes=count, on_result=keep)
        return count, {}
    from sp500.distributed import preflight, session, tune

    with session.connect():
        if left:
            preflight.check_shared_storage(run.path)
            run.write_cluster(preflight.resources())
            tune.run(data, suggested, limits, at_once=at_once, storage=run.path / ".ray", on_result=keep)
            # Handles of actors that the collector found in another thread, while Ray ends in this one, would end the
            # process.
            gc.collect()
        have = preflight.resources()
        return int(have.get("CPU", 0)), have
