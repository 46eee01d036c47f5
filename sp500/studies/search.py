"""A search from its settings to its record, whichever arm runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.machine import ray_address
from sp500.machine.units import size_bytes
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.studies.settings import SearchSettings

if TYPE_CHECKING:
    from sp500.runs.trials import TrialResult
    from sp500.tuning.limits import Plan
    from sp500.tuning.trial_data import TrialData


def run_search(
    config: SearchSettings,
    run: Run,
    *,
    on_start: Callable[[int, int], None] = lambda total, done: None,
    on_result: Callable[[TrialResult, int], None] = lambda result, running: None,
) -> RunRecord:
    """Search in one mode, and judge the best config.

    `on_start` gets the number of configs and how many of them are done, `on_result` each result and how many configs
    are running. Raises SP500Error when all trials failed.
    """
    planned, stopped = plan(config), Event()
    if alone := list_alone(planned, config.run_config()):
        print(f"halving: {alone}", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside, ExitStack() as cluster:
        on_ray = _begins_with_ray(planned)
        begin = on_ray and _connect_ray()
        # The data is prepared while Ray starts, and the best config trained while Ray ends. Ray was imported before:
        # two threads that import it and torch at once may meet half of a module.
        coming = beside.submit(_prepare, config.run_config(), run, planned)
        try:
            if begin:
                cluster.enter_context(begin)
            base, data = coming.result()
            from sp500.studies import search_trials

            planned = _with_arm(planned, base, data, cluster, on_ray=on_ray)
            searched = search_trials.search(base, run, planned, data, on_start=on_start, on_result=on_result)
            chosen = beside.submit(search_trials.choose, base, run, planned, data, searched, stopped=stopped)
            logged = beside.submit(search_trials.log, run, planned, searched.ledger.results.values())
            cluster.close()
            record = chosen.result()
            logged.result()
            return record
        finally:
            stopped.set()


def preview(config: SearchSettings) -> dict[str, object]:
    """What a dry run shows: the space, how configs are chosen, and how many."""
    planned = plan(config.model_copy(update={"mode": "auto"}) if config.mode == "all" else config)
    trials = planned.trials or planned.space.size
    return {"search": {"space": planned.space.name, "method": planned.method, "trials": trials}}


def _begins_with_ray(planned: Plan) -> bool:
    """Whether Ray is needed before the data is there: to run on, or to ask how large the cluster is."""
    if planned.arm == "ray" or planned.limits.workers:
        return True
    if planned.arm != "auto":
        return False
    address = ray_address.read()
    if ray_address.is_dashboard(address):
        print(
            f"this search runs on this machine: RAY_ADDRESS = {address} accepts jobs (sp500 jobs submit --on ray)",
            file=sys.stderr,
            flush=True,
        )
        return False
    return bool(address)


def _with_arm(
    planned: Plan, base: RunConfig, data: dict[str, TrialData | str], cluster: ExitStack, *, on_ray: bool
) -> Plan:
    """The plan with an arm in place of auto, and Ray ended where that does not need it."""
    if planned.arm != "auto":
        return planned
    from sp500.tuning import arm_costs

    cpus = None
    if on_ray:
        from sp500.distributed import preflight

        cpus = int(preflight.most()["CPU"])
    arm, why = arm_costs.choose(planned, base, data, cpus)
    print(why, file=sys.stderr, flush=True)
    if arm != "ray":
        cluster.close()  # before this process forks
    return replace(planned, arm=arm)


def _connect_ray() -> AbstractContextManager[None]:
    """Ray, imported where it is used."""
    from sp500.distributed import session

    return session.connect()


def _prepare(base: RunConfig, run: Run, planned: Plan) -> tuple[RunConfig, dict[str, TrialData | str]]:
    """The settings with their task, and the data that the trials share."""
    from sp500.studies import search_trials
    from sp500.tasks import catalog

    base = catalog.resolve(base)
    data = search_trials.prepare(base, planned)
    search_trials.log(run, planned)  # its libraries load while Ray starts, too
    return base, data


def plan(config: SearchSettings) -> Plan:
    """What to search and how, in one mode."""
    from sp500.tuning import space
    from sp500.tuning.limits import Limits, Plan

    candidates = space.load(config.space)
    axes = dict(candidates.axes)
    if config.by_ticker:
        from sp500.data import sources

        tickers = sources.load(config.data).tickers  # `stocks` stands for many
        axes = {"data.tickers": space.Choice(tuple((ticker,) for ticker in tickers)), **axes}
    if config.windows:
        axes = {"data.window": space.Choice(config.windows), **axes}
    candidates = replace(candidates, axes=axes)
    space.check(config.run_config(), candidates)
    method = config.method if config.method != "auto" else "grid" if candidates.is_grid else "tpe"
    limits = Limits(
        pack=int(config.pack) if config.pack.isdigit() else "off" if config.pack == "off" else "auto",
        timeout=config.trial_timeout,
        memory=size_bytes(config.trial_memory) if config.trial_memory else None,
        halving=config.halving,
        workers=config.workers_per_trial,
        device=config.train.device,
    )
    trials = config.trials or (None if method == "grid" else candidates.size or 60)
    assert config.mode != "all"  # has one process per arm: runs.arm_timing
    planned = Plan(candidates, method, trials, config.mode, limits)
    list_alone(planned, config.run_config())
    return planned


def list_alone(planned: Plan, config: RunConfig) -> str:
    """Which kinds of model train alone, so that halving stops none of them; '' where it can stop all, or is off.

    Raises ConfigError where it could stop no config.
    """
    if not planned.limits.halving:
        return ""
    from sp500.tuning import arm_costs
    from sp500.tuning.packing import packs

    trials, _ = arm_costs.sample(planned, config)
    alone = [pack[0].config for pack in packs.packs(trials, planned.limits.pack) if len(pack) == 1]
    if planned.method == "tpe":  # its guesses may share a shape where these random draws do not
        alone = [config for config in alone if not packs.packable(config)]
    kinds = ", ".join(sorted({config.model.kind for config in alone}))
    if len(alone) == len(trials):
        raise ConfigError(
            f"halving: stops members of packs, and no two configs of space {planned.space.name} ({kinds}) train "
            "together. Linear models and MLPs do, of the tasks returns, direction and synthetic, with --pack 2 or more "
            "and several configs of one shape. Leave out --halving, or search such a space"
        )
    return f"{len(alone)} of {len(trials)} configs ({kinds}) train alone and are never stopped" if alone else ""
