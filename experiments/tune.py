"""Hyper-parameter search: one config at a time, packs on this machine, packs under Ray Tune, or all three timed."""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

import sp500.studies.search
from sp500.config import RunConfig, TrainConfig
from sp500.entry import Command, experiment
from sp500.progress import Progress
from sp500.runs import arm_timing, compare
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.units import size_bytes

if TYPE_CHECKING:
    from sp500.tuning.ledger import TrialResult
    from sp500.tuning.limits import Plan
    from sp500.tuning.trial_data import TrialData


class Tune(Command):
    """Find the best of many configs by validation loss, and judge that one on the test dates."""

    experiment: ClassVar[str] = "tune"
    aliases: ClassVar[dict[str, tuple[str, str]]] = Command.aliases | {"tickers": ("data", "tickers")}
    mode: Literal["auto", "sequential", "packed", "ray", "all"] = "auto"
    """sequential: one config at a time in this process; packed: packs in processes of this machine; ray: packs under
    Ray Tune; all: each of these in a child process, timed from start to exit; auto: the one that should end first."""
    space: str = "grid18"
    """grid18 (MLP: hidden x lr x dropout) | grid108 (the same x 6 seeds) | lstm12 | wide (mlp, lstm and transformer) |
    path of a YAML file of settings, each with a value, a list or {low, high, log}."""
    method: Literal["auto", "grid", "random", "tpe"] = "auto"
    """How to choose configs; auto: all of a grid, TPE where the space has ranges."""
    trials: int | None = Field(None, gt=0)
    """Configs to try. Default: all of a grid, 60 otherwise."""
    tickers: tuple[str, ...] | None = None
    """Names of series (same as --data.tickers)."""
    by_ticker: bool = False
    """Make each ticker a dataset of its own, and rank the configs per ticker and overall."""
    windows: tuple[int, ...] = ()
    """Search each of these lengths of the window (data.window)."""
    pack: str = "auto"
    """Configs of the same shape train together as one batched model: auto | off | how many at most."""
    halving: int = Field(0, ge=0)
    """Of a pack's members only the best 1/N go on after a part of the epochs (successive halving); 0: all do."""
    trial_timeout: float | None = Field(None, gt=0)
    """Seconds that a trial may take."""
    trial_memory: str | None = None
    """Memory that a process with trials may take, such as 2GiB."""
    workers_per_trial: int = Field(0, ge=0)
    """Each trial is itself a run of Ray Train over N workers; 0: a trial is one process."""
    train: TrainConfig = TrainConfig(early_stop_patience=0)

    @field_validator("pack")
    @classmethod
    def _is_a_size(cls, pack: str) -> str:
        if pack not in {"auto", "off"} and not (pack.isdigit() and int(pack) > 0):
            raise ValueError(f"{pack!r} is none of auto, off and a number of configs")
        return pack

    @field_validator("trial_memory")
    @classmethod
    def _is_memory(cls, size: str | None) -> str | None:
        if size:
            size_bytes(size)
        return size

    @model_validator(mode="after")
    def _arms_are_alike(self) -> Tune:
        if self.num_workers:
            raise ValueError("num_workers: the trials of a search run side by side; see --workers-per-trial")
        if self.io.run_name and len(self.io.run_name) > 63 - len("-sequential"):
            raise ValueError("run name: at most 52 characters, since --mode all adds the arm to it")
        if self.halving == 1 or (self.halving and (self.mode in {"sequential", "all"} or self.pack == "off")):
            raise ValueError("halving: stops members of packs, so it needs 2 or more, packs, and --mode packed or ray")
        if self.workers_per_trial and self.mode not in {"ray", "auto"}:
            raise ValueError("workers-per-trial: needs --mode ray")
        others = (self.halving, self.trial_timeout, self.trial_memory, self.train.per_worker_batch)
        if self.workers_per_trial and any(others):
            raise ValueError(
                "workers-per-trial: not with --halving, --trial-timeout, --trial-memory or --train.per-worker-batch, "
                "which reach one process and not the workers of a trial"
            )
        return self

    @property
    def arm(self) -> str:
        """The mode."""
        return self.mode


def main(config: Tune, run: Run) -> RunRecord:
    """Search in one mode, or have one child process search in each."""
    if config.mode == "all":
        return arm_timing.run_all(config, run, Path(__file__), resume=config.resume)
    planned, stopped = plan(config), Event()
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside, Live() as live, ExitStack() as cluster:
        begin = _begins_with_ray(planned) and connected()
        # The data is prepared while Ray starts, and the best config trained while Ray ends. Ray was imported before:
        # two threads that import it and torch at once may meet half of a module.
        coming = beside.submit(prepare, config.run_config(), run, planned)
        try:
            if begin:
                cluster.enter_context(begin)
            base, made = coming.result()

            planned = _with_arm(planned, base, made, cluster)
            found = sp500.studies.search.search(base, run, planned, made, on_start=live.start, on_result=live.advance)
            chosen = beside.submit(sp500.studies.search.choose, base, run, planned, made, found, stopped=stopped)
            beside.submit(sp500.studies.search.log, run, planned, found.ledger.results.values())
            cluster.close()
            return chosen.result()
        finally:
            stopped.set()


def _begins_with_ray(planned: Plan) -> bool:
    """Whether Ray is needed before the data is there: to run on, or to ask how large the cluster is."""
    on_cluster = planned.arm == "auto" and "RAY_ADDRESS" in os.environ
    return planned.arm == "ray" or on_cluster or bool(planned.limits.workers)


def _with_arm(planned: Plan, base: RunConfig, made: dict[str, TrialData | str], cluster: ExitStack) -> Plan:
    """The plan with an arm in place of auto, and Ray ended where that does not need it."""
    if planned.arm != "auto":
        return planned
    from sp500.tuning import arm_costs

    cpus = None
    if _begins_with_ray(planned):
        from sp500.distributed import preflight

        cpus = int(preflight.most()["CPU"])
    arm, why = arm_costs.choose(planned, base, made, cpus)
    print(why, file=sys.stderr, flush=True)
    if arm != "ray":
        cluster.close()  # before this process forks
    return replace(planned, arm=arm)


def connected() -> AbstractContextManager[None]:
    """Ray, imported where it is used."""
    from sp500.distributed import session

    return session.connected()


def prepare(base: RunConfig, run: Run, planned: Plan) -> tuple[RunConfig, dict[str, TrialData | str]]:
    """The settings with their task, and the data that the trials share."""
    from sp500.tasks import catalog

    base = catalog.resolve(base)
    made = sp500.studies.search.prepare(base, planned)
    sp500.studies.search.log(run, planned)  # its libraries load while Ray starts, too
    return base, made


def plan(config: Tune) -> Plan:
    """What to search and how."""
    from sp500.tuning import space
    from sp500.tuning.limits import Limits, Plan

    found = space.load(config.space)
    axes = dict(found.axes)
    if config.by_ticker:
        from sp500.data import sources

        tickers = sources.load(config.data).tickers  # `stocks` stands for many
        axes = {"data.tickers": space.Choice(tuple((one,) for one in tickers)), **axes}
    if config.windows:
        axes = {"data.window": space.Choice(config.windows), **axes}
    found = replace(found, axes=axes)
    space.check(config.run_config(), found)
    method = config.method if config.method != "auto" else "grid" if found.is_grid else "tpe"
    limits = Limits(
        pack=int(config.pack) if config.pack.isdigit() else "off" if config.pack == "off" else "auto",
        timeout=config.trial_timeout,
        memory=size_bytes(config.trial_memory) if config.trial_memory else None,
        halving=config.halving,
        workers=config.workers_per_trial,
        device=config.train.device,
    )
    trials = config.trials or (None if method == "grid" else found.size or 60)
    assert config.mode != "all"
    return Plan(found, method, trials, config.mode, limits)


class Live:
    """How a search goes, on stderr."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._failed, self._best = 0, math.inf

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            self._progress.__exit__(None, None, None)

    def start(self, total: int, done: int) -> None:
        """The search has `total` configs, of which `done` are done."""
        self._progress = Progress("trial", total, done=done).__enter__()

    def advance(self, result: TrialResult, running: int) -> None:
        """One more has ended."""
        assert self._progress is not None
        self._failed += result.status != "ok"
        self._best = min(self._best, result.valid_loss if result.valid_loss is not None else math.inf)
        state = f"{running} running, {self._failed} failed, best {self._best:.6g}"
        self._progress.advance(f"{state}; {result.overrides} {result.valid_loss or result.reason}")


def answer(record: RunRecord) -> dict[str, Any]:
    """The record, with what `compare.searches` says under `search` whichever arms ran."""
    plain = record.model_dump(mode="json")
    if record.arm == "all" or record.search is None:
        return plain
    return {**plain, "search": {**record.search, **compare.searches({record.arm: record})}}


if __name__ == "__main__":
    sys.exit(experiment(Tune, main, sys.argv[1:], answer=answer))
