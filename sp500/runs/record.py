"""A run's record: plain data that other programs rely on.

`record.json` is written last; its existence means that the run ended. Unknown keys are ignored on reading, so that
an old reader survives a newer record. A key that is missing makes a record unreadable: the report skips and names it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sp500.config import RunConfig
from sp500.config.program import ProgramConfig
from sp500.machine.cores import usable_cores
from sp500.plugins import source
from sp500.programs.results import ProgramSummary
from sp500.runs.details import Breakdown, Elsewhere
from sp500.runs.results import (
    DataCard,
    FoldRow,
    Metrics,
    Refit,
    ScaleRow,
    SearchSummary,
    SeedRow,
)
from sp500.schema import override
from sp500.version import __version__

Status = Literal["ok", "out_of_memory", "failed", "stopped"]
_begun: ContextVar[datetime | None] = ContextVar("begun", default=None)
LIBRARIES = ("numpy", "pandas", "ray", "torch")


class Plain(BaseModel):
    """Base of recorded data: immutable, tolerant of keys from a newer version."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class EpochMetrics(Plain):
    """One pass over the training split."""

    epoch: int
    """Counted from 1."""
    train_loss: float
    """Mean over the windows of the epoch, while the weights moved."""
    valid_loss: float | None
    """Mean over the validation windows after the epoch; None without a validation split."""
    best_loss: float | None = None
    """Lowest of these so far, with that of the untrained model if that can be the best; None in earlier versions."""
    samples: int
    """Windows trained on."""
    seconds: float
    """Training and evaluation."""
    train_seconds: float = 0.0
    """Training alone."""
    first_batch_seconds: float = 0.0
    """Of these, until the first batch came."""
    finished: AwareDatetime | None = None
    """When it ended (UTC)."""
    measures: dict[str, float] = Field(default_factory=dict, exclude_if=lambda measures: not measures)
    """What a task of the user's measures on the validation windows, by its name."""


class Machine(Plain):
    """The machine of a run."""

    cpus: int
    memory_bytes: int
    threads: int
    """Threads of one process's linear algebra (torch's setting and OMP_NUM_THREADS)."""
    system: str
    simulated_nodes: int = 0
    """Nodes that were processes of this one machine."""
    cluster: dict[str, float] = Field(default_factory=dict)
    """Ray's resources, when Ray ran it, as `capacity.resources` gives them."""
    pod: bool = False
    """Whether the process ran in a pod of Kubernetes."""


class Seconds(Plain):
    """Wall-clock seconds of the phases of a run; of a resumed one, of its last process."""

    setup: float
    """From the start of the process to the first training step: imports, data, workers."""
    train: float
    """All epochs."""
    search: float = 0.0
    """Of a search: all its trials; `train` is then the chosen config's last fit."""
    total: float
    """From the start of the process to the writing of this record."""
    earlier: float = 0.0
    """Of a resumed run: from start to last sign of life of the attempts before, which were stopped or killed."""


class Throughput(Plain):
    """The speed of a training over all workers, and its share of its devices' speed."""

    unit: Literal["windows", "images", "tokens"]
    per_second: float
    """In training steps, without the wait for the very first batch."""
    parameters: int
    flops_per_window: float
    """Floating-point operations of a window's forward and backward pass."""
    matmul_flops_per_second: float
    """Operations per second of a matrix product on the same devices and number type, measured after the training."""
    mfu: float
    """Model FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B), as a share of that product."""
    data_sheet_mfu: float | None = None
    """The same as a share of the maker's figure, if the GPU's is known."""


class PlannedSearch(Plain):
    """The plan of a search that is about to start."""

    trials: int
    """Configs to try, those of earlier attempts included."""
    at: AwareDatetime
    """When the first trial of this attempt could begin (UTC)."""


class RunRecord(Plain):
    """The record of a run: its settings, its results and its end."""

    name: str
    experiment: str
    arm: str
    """solo | ray | sequential | packed | all | in_memory ..."""
    status: Status
    reason: str = ""
    config: dict[str, Any]
    fingerprint: str
    seed: int
    started: AwareDatetime
    finished: AwareDatetime
    seconds: Seconds
    samples: int = 0
    """Windows trained on, over all epochs and workers."""
    samples_per_second: float | None = None
    """Over all seconds in training steps."""
    warm_samples_per_second: float | None = None
    """The same without the wait for the very first batch, which Ray's readers need to start."""
    throughput: Throughput | None = None
    """None: of an experiment that trains no single model, or for a model whose operations cannot be counted."""
    peak_memory_bytes: int | None = None
    """Proportional set size (PSS) at its peak: of the training process, or of the largest worker node if nodes were
    measured (raylet, agents, workers, object store)."""
    peak_worker_bytes: int | None = None
    """PSS of the largest training process at its peak."""
    num_workers: int = 0
    device: str = "cpu"
    machine: Machine
    versions: dict[str, str]
    data: DataCard = Field(default_factory=DataCard)
    metrics: Metrics = Field(default_factory=dict)
    """`valid`, `test` and `naive`."""
    breakdown: Breakdown | None = None
    """Of a model of prices: its test by ticker, year, portfolio and size of the forecast."""
    best_loss: float | None = None
    """Lowest mean validation loss, that of `best_epoch`."""
    untrained_loss: float | None = None
    """Mean validation loss before the first epoch: of prices that of the naive forecast which training starts from."""
    best_epoch: int | None = None
    """0: the untrained model, which makes the naive forecast, had the lowest validation loss."""
    elsewhere: Elsewhere | None = None
    """Of forecasts that were not made here."""
    refit: Refit | None = None
    """Of a run with train.refit."""
    seeds: list[SeedRow] | None = None
    """Of a run with several seeds, whose `metrics` are the first one's."""
    planned: PlannedSearch | None = None
    """Of a search that has not ended."""
    search: SearchSummary | None = None
    """Of a search, whose `metrics` are those of the chosen config."""
    stages: int | None = None
    """Of an estimator: the stages that were fitted, such as trees, of which the first `best_epoch` are used."""
    scale: list[ScaleRow] | None = None
    """Of a scale experiment: one row per multiplier and arm."""
    folds: list[FoldRow] | None = None
    """Of a walk-forward run, whose `metrics` hold mean, deviation and count over its folds."""
    program: ProgramSummary | None = None
    """Of a program of the user's."""

    def best_config(self, folder: Path) -> RunConfig:
        """Return settings of the run's model, of a search those of its best config, for training only it.

        `folder` is the run's, which holds what it was brought. Raises pydantic's ValidationError for settings that this
        version does not know.
        """
        overrides = self.search["best"]["overrides"] if self.search else {}
        config = RunConfig.model_validate(source.make_absolute(override(self.config, overrides), folder))
        # A batch per worker is many times larger together: alone it is that in one.
        train = {"batch_size": config.batch_size, "lr": config.lr, "per_worker_batch": False}
        return config.model_copy(update={"num_workers": 0, "train": config.train.model_copy(update=train)})


def make_record(
    config: RunConfig | ProgramConfig,
    *,
    name: str,
    experiment: str,
    arm: str,
    status: Status = "ok",
    reason: str = "",
    started: datetime | None = None,
    setup_seconds: float | None = None,
    train_seconds: float = 0.0,
    cluster: dict[str, float] | None = None,
    **facts: Any,
) -> RunRecord:
    """Make the record of a run that ends now. `started` defaults to `clock_start`; `facts`: more fields."""
    started, finished = started or clock_start(), datetime.now(UTC)
    total = (finished - started).total_seconds()
    settings = config.run_config()
    return RunRecord(
        name=name,
        experiment=experiment,
        arm=arm,
        status=status,
        reason=reason,
        config=source.make_portable(settings.model_dump(mode="json")),
        fingerprint=settings.fingerprint,
        seed=settings.seed,
        started=started,
        finished=finished,
        seconds=Seconds(setup=total if setup_seconds is None else setup_seconds, train=train_seconds, total=total),
        num_workers=settings.num_workers,
        machine=machine(settings.threads, cluster),
        versions=versions(),
        **facts,
    )


def machine(threads: int, cluster: dict[str, float] | None = None) -> Machine:
    """Return this machine, as a record keeps it."""
    import psutil

    return Machine(
        cpus=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        threads=threads or usable_cores(),
        system=platform.platform(),
        cluster=cluster or {},
        pod="KUBERNETES_SERVICE_HOST" in os.environ,  # which the kubelet sets in every container
    )


def versions() -> dict[str, str]:
    """Return the versions of Python, libraries and this package, and the git commit (`-dirty` if changed)."""
    libraries = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), **libraries, "sp500": __version__, "git": _git_commit()}


@contextmanager
def starting_now() -> Iterator[None]:
    """Count the seconds of a run in the block from now: the process of a notebook is older than its runs."""
    token = _begun.set(datetime.now(UTC))
    try:
        yield
    finally:
        _begun.reset(token)


def clock_start() -> datetime:
    """Return when the clock of a run in this process began: with the process, or with the block of `starting_now`."""
    begun, started = _begun.get(), process_start()
    return max(begun, started) if begun else started  # a forked process has its parent's block


def process_start() -> datetime:
    """Return when this process began, before any import."""
    import psutil

    return datetime.fromtimestamp(psutil.Process().create_time(), UTC)


def _git_commit() -> str:
    """Return the commit of the checkout that holds this package, or 'none'."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return done.stdout.strip() or "none"
