"""A search over the arguments of a program of the user's, from its settings to its record. Loads no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from sp500.programs import ranks
from sp500.runs.experiments import PROGRAM_SEARCH
from sp500.runs.record import RunRecord, make_record
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult
from sp500.studies.program_settings import ProgramSearchSettings
from sp500.studies.searched import Searched, open_ledger
from sp500.tuning import programs, suggest
from sp500.tuning.arm import Collector
from sp500.tuning.axes import Space


@dataclass(frozen=True)
class ProgramPlan:
    """What to search and how."""

    space: Space
    method: str
    trials: int


def plan(config: ProgramSearchSettings) -> ProgramPlan:
    """Return what to search and how. Raises ConfigError for what cannot be done."""
    space = programs.load_space(config.space)
    config.template.check([*space.axes])
    method = config.method if config.method != "auto" else "grid" if space.is_grid else "tpe"
    trials = config.trials or (None if method == "grid" or space.is_grid else suggest.TRIALS)
    return ProgramPlan(space, method, suggest.count_trials(method, programs.candidates(config, space), trials))


def preview(config: ProgramSearchSettings) -> dict[str, object]:
    """Return what a dry run shows: the space, how values are chosen, and how many programs."""
    planned = plan(config)
    return {"search": {"space": planned.space.name, "method": planned.method, "trials": planned.trials}}


def run_search(
    config: ProgramSearchSettings,
    run: Run,
    *,
    on_start: Callable[[int, int], None] = lambda total, done: None,
    on_result: Callable[[TrialResult, int], None] = lambda result, running: None,
) -> RunRecord:
    """Search in one mode. `on_start` and `on_result` are as in `search.run_search`.

    Raises SP500Error when all programs failed.
    """
    planned = plan(config)
    suggested = suggest.load_method(planned.method)(
        programs.candidates(config, planned.space), planned.trials, config.search_seed
    )
    ledger = open_ledger(run.path, config.fingerprint, planned.space)
    done = len(ledger.results)
    run.write_plan(suggested.total)
    on_start(suggested.total, done)
    with ExitStack() as stack:
        arm = choose_arm(config, run, stack)
        started = time.monotonic()
        arm.run(Collector(suggested, ledger, arm, on_result, config.stop_rule))
        searched = Searched(planned, ledger, done, arm, time.monotonic() - started, config.stop_rule)
    return build_record(config, run, searched, arm)


def choose_arm(config: ProgramSearchSettings, run: Run, stack: ExitStack) -> programs.ProgramArm:
    """Return the arm that the settings name, which ends with the stack."""
    name = config.arm
    threads = ranks.read_given_threads() or {"OMP_NUM_THREADS": str(config.trial_cpus)}  # before Ray sets its own
    if name == "ray":
        from sp500.distributed import program_slots

        slots: programs.Slots = stack.enter_context(
            program_slots.connect(config, run, cpus=config.trial_cpus, gpus=config.trial_gpus)
        )
    else:
        slots = programs.LocalSlots(config.at_once if name == "parallel" else 1)
    environment = {} if name == "sequential" else threads
    arm = programs.ProgramArm(
        name,
        config,
        slots,
        run.path / "trials",
        maximize=config.maximize,
        environment=environment,
        stop=config.stop_rule,
    )
    stack.enter_context(arm)
    return arm


def build_record(config: ProgramSearchSettings, run: Run, searched: Searched, arm: programs.ProgramArm) -> RunRecord:
    """Return the record of a search that has just ended. Raises SP500Error when all programs failed."""
    best, fingerprint = searched.ledger.choose_best(), arm.fingerprint
    summary = searched.summarize(best, fingerprint)
    record = make_record(
        config.run_config(),
        name=run.name,
        experiment=PROGRAM_SEARCH,
        arm=arm.name,
        cluster=dict(arm.cluster),
        search={**summary, "metric": config.metric, "maximize": config.maximize},
        samples=sum(result.samples for result in searched.ledger.results.values()),
        peak_memory_bytes=arm.peak_bytes or None,
        best_epoch=best.best_epoch,
    )
    spent = record.seconds.model_copy(update={"search": searched.seconds})
    # The fingerprint is of the content that it began with, whatever its script is now.
    return record.model_copy(update={"fingerprint": fingerprint, "seed": config.search_seed, "seconds": spent})
