"""A search from its settings to its record. What it will do is decided without torch, before it has a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from sp500.config import RunConfig, kinds
from sp500.errors import ConfigError
from sp500.machine import ray_address
from sp500.machine.imports import preload
from sp500.machine.units import size_bytes
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.runs.trials import TrialResult
from sp500.studies.settings import SearchSettings

if TYPE_CHECKING:
    from sp500.distributed.session import BackgroundRay
    from sp500.tuning.axes import Choice, Space
    from sp500.tuning.limits import Plan

DECIDE_LOSS = ("task", "train.loss", "train.quantile")
DECIDE_DATA = ("data.", "task", *(f"{kind.section}." for kind in kinds.tasks().values() if kind.section), "train.dtype")


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
    planned = plan(config)
    if alone := list_alone(planned, config.run_config()):
        print(f"halving: {alone}", file=sys.stderr, flush=True)
    with _start_ray(planned) as ray:
        from sp500.studies import search_steps  # loads torch

        base, data = search_steps.prepare(config.run_config(), planned)  # while Ray starts
        if ray is not None or planned.limits.memory:
            preload("sp500.tuning.optuna_log")  # while Ray starts, or before this process is limited
        costs = search_steps.expect_costs(planned, base, data, ray)
        with search_steps.choose_arm(planned, base, run, data, ray, costs=costs) as arm:
            searched = search_steps.run_trials(
                arm, base, run, planned, data, costs=costs, on_start=on_start, on_result=on_result
            )
        try:
            return search_steps.train_best(base, run, planned, data, searched)  # while Ray ends
        finally:
            search_steps.log(run, planned.space, searched.ledger.results.values())


def plan(config: SearchSettings) -> Plan:
    """Return what to search and how; in mode all, what each arm does. Raises ConfigError for what cannot be done."""
    from sp500.tuning import space, suggest  # with numpy, which --help does not need
    from sp500.tuning.limits import NO_VALIDATION, Limits, Plan

    if config.task_kind.from_prices and not config.data.valid_from_train:
        raise ConfigError(NO_VALIDATION)
    searched = space.load(config.space)
    axes = dict(searched.axes)
    if config.by_ticker:
        from sp500.data import sources

        tickers = sources.load(config.data).tickers  # `stocks` means many
        axes = {"data.tickers": space.Choice(tuple((ticker,) for ticker in tickers)), **axes}
    if config.windows:
        axes = {"data.window": space.Choice(config.windows), **axes}
    searched, base = replace(searched, axes=axes), config.run_config()
    method = config.method if config.method != "auto" else "grid" if searched.is_grid else "tpe"
    stop = config.stop_rule
    limits = Limits(
        pack=int(config.pack) if config.pack.isdigit() else "off" if stop or config.pack == "off" else "auto",
        timeout=config.trial_timeout,
        memory=size_bytes(config.trial_memory) if config.trial_memory else None,
        halving=config.halving,
        workers=config.workers_per_trial,
        stop=stop,
    )
    trials = config.trials or (None if method == "grid" or searched.is_grid else suggest.TRIALS)
    trials = suggest.count_trials(method, space.candidates(base, searched), trials)
    data_axes(searched)
    planned = Plan(searched, method, trials, "auto" if config.mode == "all" else config.mode, limits)
    list_alone(planned, base)
    return planned


def data_axes(searched: Space) -> dict[str, Choice]:
    """Return the axes that decide the data. Raises ConfigError for one that is a range, or decides the loss."""
    from sp500.tuning.axes import Choice

    if losses := [name for name, axis in searched.axes.items() if name in DECIDE_LOSS and axis.count != 1]:
        raise ConfigError(
            f"search space {searched.name}: {losses[0]} decides what a validation loss is; set it for the whole search"
        )
    axes = {name: axis for name, axis in searched.axes.items() if name.startswith(DECIDE_DATA)}
    listed = {name: axis for name, axis in axes.items() if isinstance(axis, Choice)}
    for name in axes.keys() - listed:
        raise ConfigError(f"search space {searched.name}: {name} decides the data; list its values, no range")
    return listed


def preview(config: SearchSettings) -> dict[str, object]:
    """Return what a dry run shows: the space, how configs are chosen, and how many."""
    planned = plan(config)
    return {"search": {"space": planned.space.name, "method": planned.method, "trials": planned.trials}}


def list_alone(planned: Plan, config: RunConfig) -> str:
    """Return the kinds of model that train alone, so that halving stops none; '' if it can stop all, or is off.

    Raises ConfigError if it could stop no config.
    """
    if not planned.limits.halving:
        return ""
    from sp500.tuning import arm_costs, suggest
    from sp500.tuning.packing import scheduler

    trials, _ = arm_costs.draw_sample(planned, config)
    packs = scheduler.split_into_packs(trials, planned.limits.pack)
    alone = [pack[0].config for pack in packs if len(pack) == 1]
    if suggest.load_method(planned.method).at_once:  # guesses may share a shape where these random draws do not
        alone = [config for config in alone if not scheduler.can_pack(config)]
    kinds = ", ".join(sorted({config.model.kind for config in alone}))
    if len(alone) == len(trials):
        raise ConfigError(
            f"halving: no two configs of space {planned.space.name} ({kinds}) train together in a pack, as linear "
            "models and MLPs of one shape do. Leave out --halving, or search such a space"
        )
    return f"{len(alone)} of {len(trials)} configs ({kinds}) train alone and are never stopped" if alone else ""


def _start_ray(planned: Plan) -> AbstractContextManager[BackgroundRay | None]:
    """Start Ray if it runs the trials, or if mode auto has to know the size of the cluster."""
    address = ray_address.read() if planned.arm == "auto" else ""
    if ray_address.is_dashboard(address):
        reason = f"RAY_ADDRESS = {address} accepts jobs (sp500 jobs submit --on ray)"
        print(f"this search runs on this machine: {reason}", file=sys.stderr, flush=True)
        address = ""
    if not (address or planned.arm == "ray" or planned.limits.workers):
        return nullcontext()
    from sp500.distributed import session

    return session.start_in_background()
