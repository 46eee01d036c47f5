"""A search from its settings to its record: try configs, choose by validation, look at the test once."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sp500 import metrics
from sp500.config import RunConfig
from sp500.distributed import launch
from sp500.errors import ConfigError, SP500Error
from sp500.runs.memory import hold_to
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.tuning import material, optuna_log, sequential
from sp500.tuning.ledger import Ledger, TrialResult
from sp500.tuning.limits import Plan
from sp500.tuning.material import Material
from sp500.tuning.space import Choice, Space, key, trial, valid
from sp500.tuning.suggest import Suggester, suggester

# Configs that TPE is asked for at once: about a pack for each of a few cores.
GUESSES_AT_ONCE = 8
DECIDE_DATA = ("data.", "task", "synthetic.", "train.dtype")


def prepare(config: RunConfig, plan: Plan) -> dict[str, Material | str]:
    """The data of the search. Raises ConfigError for a search without validation, DataError when none can be made."""
    if not config.data.valid_from_train:
        raise ConfigError("data.valid_from_train is 0: a search needs a validation split to choose by")
    return material.prepare(_data_configs(config, plan.space))


def search(
    config: RunConfig,
    run: Run,
    plan: Plan,
    made: dict[str, Material | str],
    *,
    on_start: Callable[[int, int], None] = lambda total, done: None,
    on_result: Callable[[TrialResult, int], None] = lambda result, running: None,
) -> RunRecord:
    """Try the configs, then train the best by validation loss once more, as this run, and only then look at the test.

    Trials that the run's ledger holds are not run again. `on_start` is told how many there are in all and how many are
    done, `on_result` of each result and how many are on their way. Raises SP500Error when all trials failed.
    """
    suggested = suggester(plan.method, config, plan.space, plan.trials, config.train.seed)
    ledger = _ledger(run, plan.space, made, suggested)
    done, started = len(ledger.results), time.monotonic()
    on_start(suggested.total, done)

    def keep(result: TrialResult, running: int) -> None:
        ledger.add(result)
        suggested.tell(result)
        on_result(result, running)

    with ThreadPoolExecutor(1, thread_name_prefix="optuna") as beside:
        try:
            cores = _try_all(made, suggested, plan, run, keep, left=suggested.total - done)
        finally:
            written = beside.submit(
                optuna_log.write, run.path / "optuna.db", run.name, plan.space, list(ledger.results.values())
            )
        facts = {"resumed": done, "cores": cores, "key": key(ledger.results, _hash(made))}
        record = _chosen(config, run, plan, ledger, made, facts=facts, seconds=time.monotonic() - started)
        if error := written.exception():
            # The ledger is what counts; this file is for others to look at.
            logging.getLogger(__name__).warning("%s could not be written: %s", run.path / "optuna.db", error)
        return record


def _ledger(run: Run, space: Space, made: dict[str, Material | str], suggested: Suggester) -> Ledger:
    """What an earlier attempt found, told to the suggester. Raises ConfigError for results of another space."""
    ledger = Ledger(run.path, _hash(made))
    for result in ledger.results.values():
        if not space.contains(result.overrides):
            raise ConfigError(f"{ledger.path} holds trials of another space than {space.name}; take another --name")
        suggested.tell(result)
    return ledger


def _chosen(
    config: RunConfig,
    run: Run,
    plan: Plan,
    ledger: Ledger,
    made: dict[str, Material | str],
    *,
    facts: dict[str, Any],
    seconds: float,
) -> RunRecord:
    """Record of the best config's run, and of the search that chose it in so many seconds."""
    best = ledger.best()
    if best is None:
        reasons = [f"  {one.overrides}: {one.reason}" for one in ledger.results.values()]
        raise SP500Error("\n".join([f"all {len(reasons)} trials failed:", *reasons[:5]]))
    chosen = trial(config, best.overrides).config
    ready, arm = made[material.key(chosen)], "parallel" if plan.parallel else "sequential"
    assert isinstance(ready, Material)
    record = launch.train(chosen, run, experiment="tune", arm=arm, dataset=ready.dataset)
    summary = {"space": plan.space.name, "method": plan.method, **facts, **_summary(ledger, best, record)}
    samples = record.samples + sum(one.samples for one in ledger.results.values())
    spent = record.seconds.model_copy(update={"setup": record.seconds.setup - seconds, "search": seconds})
    return record.model_copy(update={"search": summary, "samples": samples, "seconds": spent})


def _data_configs(config: RunConfig, space: Space) -> list[RunConfig]:
    """A config for each of the space's settings of the data."""
    axes = {name: axis for name, axis in space.axes.items() if name.startswith(DECIDE_DATA)}
    values = []
    for name, axis in axes.items():
        if not isinstance(axis, Choice):
            raise ConfigError(f"search space {space.name}: {name} decides the data; list its values, no range")
        values.append(axis.values)
    found = [valid(config, dict(zip(axes, chosen, strict=True))) for chosen in itertools.product(*values)]
    return [one.config for one in found if one]  # what is no valid config is never tried


def _hash(made: dict[str, Material | str]) -> str:
    """Hash of all data of a search; that of the one dataset where there is one."""
    hashes = [one.dataset.sha256 if isinstance(one, Material) else one for one in made.values()]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(json.dumps(sorted(hashes)).encode()).hexdigest()


def _summary(ledger: Ledger, best: TrialResult, record: RunRecord) -> dict[str, Any]:
    results = list(ledger.results.values())
    sharpes = [one.valid_sharpe for one in results if one.status == "ok"]
    valid = record.metrics.get("valid", {})
    by_dataset: dict[str, TrialResult] = {}
    for one in sorted((one for one in results if one.score is not None), key=lambda one: one.score or 0.0):
        by_dataset.setdefault(one.dataset, one)
    return {
        "configs": len(results),
        "failed": sum(one.status != "ok" for one in results),
        "rerun": ledger.rerun,
        "best": _named(best),
        "by_dataset": [{"dataset": name, **_named(one)} for name, one in by_dataset.items()],
        "deflated_sharpe": metrics.deflated_sharpe(
            valid.get("daily_sharpe"), sharpes, valid.get("skew"), valid.get("kurtosis"), valid.get("observations") or 0
        ),
    }


def _named(result: TrialResult) -> dict[str, Any]:
    return {**result.model_dump(include={"id", "overrides", "valid_loss"}), "score": result.score}


def _try_all(
    made: dict[str, Material | str],
    suggested: Suggester,
    plan: Plan,
    run: Run,
    keep: Callable[[TrialResult, int], None],
    *,
    left: int,
) -> int:
    """Hand each trial's result to `keep`; gives the number of cores that could be used."""
    limits = plan.limits
    if not plan.parallel:
        if limits.memory:
            hold_to(limits.memory)
        while trials := suggested.ask(1):
            keep(sequential.run_trial(made[material.key(trials[0].config)], trials[0], limits.timeout), 0)
        return 1
    from sp500.distributed import cluster
    from sp500.distributed import search as tune

    at_once = GUESSES_AT_ONCE if plan.method == "tpe" else left
    with cluster.connected():
        if left:
            tune.run(made, suggested, limits, at_once=at_once, storage=run.path / ".ray", on_result=keep)
        return tune.cores()
