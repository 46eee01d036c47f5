"""Settings of the studies: a run's, and what each study adds. Light to import, so that --help answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from sp500.config import DataConfig, IOConfig, RunConfig, TrainConfig
from sp500.config.estimators import explain_alone, reset_unused
from sp500.config.frozen import AgentFiles, setting
from sp500.credentials import Address
from sp500.execution import Experiment, Runnable
from sp500.formatting import some
from sp500.machine.units import size_bytes
from sp500.plugins import admission, contract, reference, source
from sp500.plugins.reference import Reference
from sp500.runs.record import RunRecord
from sp500.tuning.stopper import StopperName, StopRule


class TrainSettings(Experiment):
    """Train one model and judge it on dates that it has not seen."""

    experiment: ClassVar[str] = "train"
    seeds: int = setting(1, gt=0, agents=True)
    """Train for as many seeds (--seed, --seed + 1, ...), and report how far the metrics spread over them."""

    @model_validator(mode="after")
    def _fits_one_process(self) -> TrainSettings:
        if self.num_workers and self.model.estimator:
            raise ValueError(f"num_workers: {explain_alone(self.model.kind)}; leave it out")
        return self


class SearchSettings(Experiment):
    """Find the best of many configs by validation loss, and judge that one on the test dates."""

    experiment: ClassVar[str] = "tune"
    mode: Literal["auto", "sequential", "packed", "ray", "all"] = setting("auto", agents=True)
    """sequential: one config at a time in this process; packed: packs in processes of this machine; ray: packs under
    Ray Tune; all: each of these in a child process, timed from start to exit; auto: the one that should end first."""
    space: str = setting("grid18", agents=AgentFiles(frozenset({".yaml", ".yml"}), folder="spaces"))
    """grid18 (MLP: hidden x lr x dropout) | grid108 (the same x 6 seeds) | lstm12 | wide (mlp, lstm and transformer) |
    path of a YAML file of settings, each with a value, a list or {low, high, log}."""
    method: str = setting("auto", agents=True)
    """How to choose configs: grid | random | qmc | tpe | gp | cmaes | your own: FILE.py:NAME | auto (all of a grid, TPE
    if the space has ranges)."""
    trials: int | None = setting(None, gt=0, agents=True)
    """Configs to try. Default: all of a grid, 60 otherwise."""
    by_ticker: bool = setting(False, agents=True)
    """Make each ticker a dataset of its own, and rank the configs per ticker and overall."""
    windows: tuple[int, ...] = setting((), agents=True)
    """Search each of these lengths of the window (data.window)."""
    pack: str = setting("auto", agents=True)
    """Configs of the same shape train together as one batched model: auto | off | how many at most."""
    halving: int = setting(0, ge=0, agents=True)
    """Of a pack's members only the best 1/N continue after a part of the epochs (successive halving); 0: all do."""
    stop: Literal["none", StopperName] = setting("none", agents=True)
    """Stop weak configs at rungs, as results come, on any arm and for any model: asha: below the best 1/N of those that
    came there before; median: below their median."""
    stop_reduction: int = setting(StopRule.reduction, ge=2, agents=True)
    """N: of asha, and the ratio of one rung to the next."""
    stop_first: int = setting(StopRule.first, ge=1, agents=True)
    """The epoch of the first rung. After a single epoch the best config is often among the worst."""
    trial_timeout: float | None = setting(None, gt=0, agents=True)
    """Seconds that a trial may take."""
    trial_memory: str | None = setting(None, agents=True)
    """Memory that a process with trials may take, such as 2GiB."""
    workers_per_trial: int = Field(0, ge=0)
    """Each trial is itself a run of Ray Train over N workers; 0: a trial is one process."""

    @property
    def subject(self) -> str:
        """The space, whose models may be others than that of the settings."""
        return Path(self.space).stem

    @field_validator("method")
    @classmethod
    def _is_a_method(cls, method: str) -> str:
        from sp500.tuning.suggest import METHODS

        if method not in {"auto", *METHODS}:
            reference.parse(method, "method", ("auto", *METHODS))
        return method

    @field_validator("pack")
    @classmethod
    def _is_a_size(cls, pack: str) -> str:
        if pack not in {"auto", "off"} and not (pack.isdigit() and int(pack) > 0):
            raise ValueError(f"invalid --pack {pack!r}: expected auto, off or a positive integer")
        return pack

    @field_validator("trial_memory")
    @classmethod
    def _is_memory(cls, size: str | None) -> str | None:
        if size:
            size_bytes(size)
        return size

    @model_validator(mode="after")
    def _arms_are_alike(self) -> SearchSettings:
        if self.num_workers:
            raise ValueError("num_workers: the trials of a search run side by side; see --workers-per-trial")
        if self.io.run_name and len(self.io.run_name) > 63 - len("-sequential"):
            raise ValueError("io.run_name: at most 52 characters, since --mode all adds the arm to it")
        if self.halving == 1 or (self.halving and (self.mode in {"sequential", "all"} or self.pack in {"off", "1"})):
            raise ValueError("halving: stops members of packs: needs 2 or more, --pack 2 or more, --mode packed or ray")
        if self.workers_per_trial and self.model.estimator:
            raise ValueError(f"workers_per_trial: {explain_alone(self.model.kind)}; leave it out")
        if self.workers_per_trial and self.mode not in {"ray", "auto"}:
            raise ValueError("workers_per_trial: needs --mode ray")
        if self.stop != "none" and (self.halving or self.pack not in {"auto", "off"}):
            raise ValueError("stop: each config trains alone, so not with --halving or --pack N, which are for packs")
        if self.stop != "none" and self.stop_first >= self.train.epochs:
            raise ValueError(f"stop_first: {self.stop_first} is not below train.epochs {self.train.epochs}; lower it")
        others = (self.halving, self.trial_timeout, self.trial_memory, self.train.per_worker_batch)
        if self.workers_per_trial and (any(others) or self.stop != "none"):
            raise ValueError(
                "workers_per_trial: not with --halving, --stop, --trial-timeout, --trial-memory or per_worker_batch"
            )
        return self

    @property
    def arm(self) -> str:
        """The mode."""
        return self.mode

    @property
    def stop_rule(self) -> StopRule | None:
        """The rule that stops configs; None without one."""
        return None if self.stop == "none" else StopRule(self.stop, self.stop_first, self.stop_reduction)

    @property
    def own_method(self) -> Reference | None:
        """Reference to the user's own suggester; None for a built-in method."""
        from sp500.tuning.suggest import METHODS

        return None if self.method in {"auto", *METHODS} else reference.parse(self.method, "method", METHODS)

    def give(self, named: Mapping[str, Any]) -> None:
        """Count the method as given by the user too, if `named` has it."""
        super().give(named)
        if named.get("method") and (own := self.own_method):
            admission.give(own)

    def keep_sources(self, run: Path, *, trusted: bool) -> SearchSettings:
        """Replace the method's file by the run's own copy too. Raises ConfigError for one that may not run."""
        own = self.own_method
        if own:
            admission.admit(run, own, trusted=trusted)
        kept = super().keep_sources(run, trusted=trusted)
        if own is None or own.module:
            return kept
        return kept.model_copy(update={"method": f"{source.keep(own, run)}:{own.name}"})

    def check_own(self) -> None:
        """Import the method too if it may run here, and check it. Raises ConfigError."""
        super().check_own()
        if (own := self.own_method) and admission.is_known(own):
            contract.load_suggester(own)

    def decisive(self) -> dict[str, object]:
        """Return what decides the search; of a user's method what its file says, wherever that lies."""
        own = self.own_method
        return super().decisive() | ({"method": own.identity} if own else {})

    def name_changed_source(self, wanted: Runnable) -> str:
        """Return which file of the user's differs from that of the settings `wanted`, the method's too; '' if none."""
        assert isinstance(wanted, SearchSettings)
        own, other = self.own_method, wanted.own_method
        if own and other and own.identity != other.identity:
            return f"{other.path} differs from the run's {own.path}"
        return super().name_changed_source(wanted)

    def check_start(self) -> None:
        """Raise ConfigError for a space, a method or a limit that cannot be searched."""
        from sp500.studies import search

        search.plan(self)

    def check_ended(self, record: RunRecord) -> None:
        """Raise ConfigError if the space is a file whose number of values has changed."""
        from sp500.studies import search, searched

        searched.check_unchanged(record, self.space, lambda: search.plan(self))

    @property
    def joins_cluster(self) -> bool:
        """Not in mode auto, which runs on this machine if there is no cluster."""
        return self.mode in {"ray", "all"} or bool(self.workers_per_trial)


class Budgeted(Experiment):
    """Limits of every arm of the experiment."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an address with a password is not repeated

    experiment: ClassVar[str] = "scale"
    memory_limit: str = setting("2GiB", agents=True)
    """Memory of one node, in MiB or GiB: for the process of an arm without Ray, and for each node of Ray."""
    nodes: int | None = Field(None, gt=0)
    """Local nodes of the ray arm, a simulation on this machine. Default: one per worker (none on a cluster)."""
    shards: Address = ""
    """Folder or URI (s3://, gs://) of sets of shards, or of one that `prepare --out` made. Default: with the runs."""
    skip_bad_shards: int = setting(0, ge=0, agents=True)
    """Continue without up to this many damaged shards."""

    @field_validator("memory_limit")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        size_bytes(size)
        return size

    @property
    def limit_bytes(self) -> int:
        """The budget in bytes."""
        return size_bytes(self.memory_limit)

    @property
    def joins_cluster(self) -> bool:
        """Not with nodes that are simulated here."""
        return bool(self.num_workers) and self.nodes is None


class ScaleSettings(Budgeted):
    """Train on the data (20 stocks) and noisy copies of it, once per arm and dataset size."""

    arm: ClassVar[str] = "all"
    multipliers: tuple[Annotated[int, Field(gt=0)], ...] = setting((1, 10), min_length=1, agents=True)
    """Sizes: the training data and this many minus one noisy copies."""
    arms: tuple[Literal["in_memory", "streaming", "ray"], ...] = setting(
        ("in_memory", "streaming", "ray"), min_length=1, agents=True
    )
    """Ways of training to compare. in_memory: windows as arrays; streaming: shards, one process; ray: shards,
    --num-workers workers."""
    max_steps: int = setting(0, ge=0, agents=True)
    """Stop each run after this many steps; 0: no limit."""
    num_workers: tuple[Annotated[int, Field(gt=0)], ...] = Field((2,), min_length=1)  # type: ignore[assignment]
    """Workers of the ray arm; several: one run each, for strong and weak scaling."""
    data: DataConfig = DataConfig(tickers=("stocks",))
    train: TrainConfig = TrainConfig(epochs=3, batch_size=1024, early_stop_patience=0)

    @model_validator(mode="after")
    def _fits_one_process(self) -> ScaleSettings:
        if self.model.estimator and set(self.arms) != {"in_memory"}:
            raise ValueError(f"arms: {explain_alone(self.model.kind)}; use --arms in_memory")
        if self.model.estimator:  # the defaults of this experiment are for networks
            object.__setattr__(self, "train", reset_unused(self.train))
        return self

    @field_validator("num_workers", mode="before")
    @classmethod
    def _one_is_a_list(cls, workers: object) -> object:
        return (workers,) if isinstance(workers, int) else workers

    @property
    def joins_cluster(self) -> bool:
        """True if its ray arm runs on the Ray cluster of RAY_ADDRESS."""
        return "ray" in self.arms and super().joins_cluster

    def run_config(self) -> RunConfig:
        """Return the settings of the largest of its runs."""
        one = self.model_copy(update={"num_workers": max(self.num_workers)})
        return super(ScaleSettings, one).run_config()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its largest run, the size apart."""
        return self.run_config().fingerprint

    @field_validator("io")
    @classmethod
    def _name_has_room(cls, io: IOConfig) -> IOConfig:
        if io.run_name and len(io.run_name) > 40:
            raise ValueError("io.run_name: at most 40 characters, since every arm and size adds to it")
        return io


class ArmSettings(Budgeted):
    """One arm at one size."""

    kind: str = ""

    @property
    def arm(self) -> str:
        """Its name in the table."""
        return self.kind

    @property
    def label(self) -> str:
        """Its name on the way."""
        return f"{self.data.multiplier}x {self.kind}" + (
            f" ({some(self.num_workers, 'worker')})" if self.num_workers else ""
        )


class WalkForwardSettings(Experiment):
    """Re-train one config on every fold of the dates and judge it on the days after, next to naive forecasts."""

    experiment: ClassVar[str] = "walk_forward"
    folds: int = setting(6, gt=0, agents=True)
    """How often to train; each test follows that of the fold before, and training has all dates before the test."""
    test_days: int = setting(252, gt=0, agents=True)
    """Sessions of each test."""
    best_of: str | None = setting(None, agents=True)
    """Search or train run in the same folder whose (best) config is re-trained; --config and flags override it."""
    num_workers: int = Field(0, ge=0)
    """Folds at once on Ray; 0: one after another in this process."""
    data: DataConfig = DataConfig(tickers=("stocks",))

    @property
    def subject(self) -> str:
        """The run that the model comes from, if it is another's."""
        return self.best_of or super().subject

    @model_validator(mode="after")
    def _has_dates(self) -> WalkForwardSettings:
        if not (self.task_kind.from_prices or self.own_task) or self.data.npz_path:
            raise ValueError("folds are cut by date: only tasks of prices have any, without data.npz_path")
        return self
