"""Every setting of a run, checked once at the door.

Pydantic only, so that `--help` is instant; the line under a field is its help text. The settings of a kind of model,
and a task's own section, belong to their owner (sp500.models.settings, sp500.tasks.settings) and are put together here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, SerializeAsAny, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from sp500.config import kinds, task
from sp500.config.frozen import AgentFiles, Alias, setting
from sp500.config.frozen import Frozen as Frozen
from sp500.config.model import ModelConfig as ModelConfig
from sp500.config.model import OwnModel as OwnModel
from sp500.config.task import TaskKind as TaskKind
from sp500.config.train import LATER_KEYS as LATER_KEYS
from sp500.config.train import PLACES
from sp500.config.train import TrainConfig as TrainConfig
from sp500.credentials import check_settings, without_password
from sp500.errors import require
from sp500.plugins import admission, contract, reference, source
from sp500.plugins.reference import Reference
from sp500.schema import prefix, unknown_key

R = TypeVar("R", bound="RunConfig")
S = TypeVar("S", bound=Frozen)

RUN_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")


PRICES = AgentFiles(frozenset({".csv", ".parquet", ".pq"}), frozenset({"bundled", "yfinance"}))


class DataConfig(Frozen):
    """Which prices, which windows, which split."""

    source: str = setting("bundled", agents=PRICES)
    """bundled (real prices, offline) | yfinance | path of a CSV or Parquet file."""
    tickers: Annotated[tuple[str, ...], Alias("--tickers")] = setting((), agents=True)
    """Names of series; `stocks`: all but the index. None given: the index, or all that a file holds."""
    start: date | None = setting(None, agents=True)
    """First date. Default: all there is (bundled stocks: 1996-01-01, earlier prices are too coarsely rounded)."""
    end: date | None = setting(None, agents=True)
    """Last date. Default: all there is."""
    window: int = setting(30, gt=0, agents=True)
    """Days of features that one forecast sees."""
    horizon: int = setting(1, gt=0, agents=True)
    """Days ahead that are forecast."""
    test_fraction: float = setting(0.15, gt=0, lt=1, agents=True)
    """Last part of the dates, held out for the test."""
    valid_from_train: float = setting(0.175, ge=0, lt=1, agents=True)
    """Last part of the remaining dates (or of X_train) used for validation; 0: no validation."""
    gap: int | None = setting(None, ge=1, agents=True)
    """Sessions left out between two splits. Default and minimum: window + horizon."""
    norm: Literal["zscore", "minmax", "none"] = setting("zscore", agents=True)
    """Feature scaling, fitted on the training dates only."""
    shuffle_train: bool = setting(True, agents=True)
    """Training windows come in a new order in every epoch; --data.no-shuffle-train keeps their order."""
    seed: int = setting(0, ge=0, agents=True)
    """Seed of the batch order and of noisy copies: the same for every config of a search."""
    multiplier: Annotated[int, Alias("--multiplier")] = setting(1, gt=0, agents=True)
    """Size of the training set: the original and multiplier - 1 noisy copies of the training data."""
    augment: Literal["noise", "bootstrap"] = setting("noise", agents=True)
    """How copies differ: noise on the features, or a price path of resampled daily returns."""
    noise: float = setting(0.1, ge=0, agents=True)
    """Noise of a copy, in training standard deviations of each feature; of text the share of bytes drawn anew."""
    jitter: float = setting(0.0, ge=0, agents=True)
    """Standard deviation of a factor around 1 per copy and feature."""
    npz_path: Path | None = setting(None, agents=AgentFiles(frozenset({".npz"})))
    """Arrays X_train, y_train, X_test, y_test (X: samples, window, features) in place of prices."""
    real_moves: tuple[Annotated[str, Field(pattern=r"^[^:]+:\d{4}-\d{2}-\d{2}$")], ...] = setting((), agents=True)
    """TICKER:YYYY-MM-DD of large moves that really happened and are no fault in the data."""
    cache_dir: Path = Path("~/.cache/sp500")
    """Where downloaded prices are kept."""
    fallback: Annotated[Literal["bundled"] | None, Alias("--fallback")] = setting(None, agents=True)
    """What to use when a download fails and nothing is cached. Default: end with the error."""

    @field_validator("tickers")
    @classmethod
    def _capitalize(cls, names: tuple[str, ...], earlier: Any) -> tuple[str, ...]:
        """Write the names of the bundled prices and of Yahoo as these do, so that `aapl` and `AAPL` are one setting."""
        names = tuple(name.strip() for name in names)
        has_capitals = earlier.data.get("source") in ("bundled", "yfinance")
        return tuple(name.upper() if has_capitals and name != "stocks" else name for name in names)

    @field_validator("valid_from_train", mode="before")
    @classmethod
    def _switch_means_fraction(cls, value: Any) -> Any:
        """Accept the switch of earlier settings files: true is the default fraction, false is none."""
        return {True: 0.175, False: 0.0}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _gap_purges(self) -> DataConfig:
        if self.gap is not None and self.gap < self.window + self.horizon:
            raise ValueError(
                f"data.gap is {self.gap}, below window + horizon = {self.window + self.horizon}: a training "
                "target would lie inside a validation window; leave data.gap empty"
            )
        if self.start and self.end and self.start >= self.end:
            raise ValueError(f"data.start {self.start} is not before data.end {self.end}")
        return self

    @property
    def purge(self) -> int:
        """Sessions between two splits."""
        return self.gap if self.gap is not None else self.window + self.horizon

    @property
    def identity(self) -> dict[str, object]:
        """What decides windows of prices: files by their names."""
        return self.model_dump(mode="json", exclude={"cache_dir", "fallback"}) | {
            "gap": self.purge,
            "source": Path(self.source).name,
            "npz_path": self.npz_path and self.npz_path.name,
        }

    @property
    def order(self) -> dict[str, object]:
        """What decides the order of the windows in training."""
        return self.model_dump(include={"seed", "shuffle_train"})

    @property
    def cut(self) -> dict[str, object]:
        """What decides which windows are held out."""
        return self.model_dump(include={"test_fraction", "valid_from_train"})

    @property
    def copies(self) -> dict[str, object]:
        """What decides the noisy copies; empty without any."""
        return self.model_dump(include={"multiplier", "augment", "noise", "jitter"}) if self.multiplier > 1 else {}


class EvalConfig(Frozen):
    """How the forecasts are judged."""

    threshold: float = setting(0.5, gt=0, lt=1, agents=True)
    """Probability from which a direction forecast counts as up."""
    save_cm: bool = setting(True, agents=True)
    """The confusion matrix of a classification goes to the run's folder; --eval.no-save-cm leaves it out."""
    cost_bps: float = setting(1.0, ge=0, agents=True)
    """Trading cost per unit of turnover, in basis points."""


def archive_uri(uri: str) -> str:
    """The address of an archive, without a / at its end. Raises ValueError, which repeats no password."""
    uri, parts = without_password(uri).rstrip("/"), urlsplit(uri)
    if "@" in parts.netloc:
        raise ValueError("the address names a user. Leave it out and set AWS_ACCESS_KEY_ID")
    if parts.scheme == "file" and (parts.query or parts.fragment):
        raise ValueError("the folder ends at the first ? or #; write %3F or %23 where they are part of its name")
    if (parts.scheme, bool(parts.netloc), bool(parts.path.strip("/"))) not in ARCHIVES:
        raise ValueError(f"expected s3://BUCKET, s3://BUCKET/PREFIX or file:///FOLDER, got {uri!r:.200}")
    return uri


ARCHIVES = {("s3", True, True), ("s3", True, False), ("file", False, True)}
"""What an archive's address may be: its scheme, and whether it has a host (the bucket) and a path."""


class IOConfig(Frozen):
    """Where results go."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an address may hold a password

    save_dir: Annotated[Path, Alias("--runs-dir")] = Path("runs")
    """Folder of all runs."""
    run_name: Annotated[str | None, Alias("--name")] = setting(None, agents="short")
    """Name of this run's folder. Default: made from experiment, model and time."""
    archive: str | None = None
    """s3://BUCKET/PREFIX or file:///FOLDER that the run is copied to while it goes on. Default: no copy. Credentials
    come from the environment."""

    @field_validator("archive")
    @classmethod
    def _is_an_archive(cls, uri: str | None) -> str | None:
        return archive_uri(uri) if uri else None

    @field_validator("run_name")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not RUN_NAME.fullmatch(name):
            raise ValueError(f"run name {name!r} must match {RUN_NAME.pattern}: at most 63 of a-z, 0-9, '.', '_', '-'")
        return name


class RunConfig(Frozen):
    """One run: what is forecast, from what, by which model, trained how.

    The section of the task, such as `images`, is a key of its own next to these.
    """

    model_config = ConfigDict(extra="allow")  # the task's section; `_read_sections` refuses all else

    task: str = Field(default_factory=kinds.default_task, json_schema_extra={"agents": True})
    """{tasks} | your own: FILE.py:NAME or package.module:NAME."""
    num_workers: int = Field(0, ge=0)
    """0: this process, without Ray; N >= 1: Ray Train with N workers."""
    data: DataConfig = DataConfig()
    model: SerializeAsAny[ModelConfig] = Field(default_factory=ModelConfig)
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    io: IOConfig = IOConfig()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, settings: Any) -> Any:
        """Read the section of the task. Sections of other tasks may stay where they have their defaults."""
        if not isinstance(settings, Mapping):
            return settings
        check_settings(settings)  # settings are kept in records and repeated in messages
        return cls._take_sections(str(settings.get("task") or kinds.default_task()), settings)

    @classmethod
    def _take_sections(cls, name: str, settings: Mapping[Any, Any]) -> dict[str, Any]:
        """Return plain settings with the section of this task as an object, and without those of others."""
        kind, plain = task.find(name), {key: value for key, value in settings.items() if key in cls.model_fields}
        owners = {other.section: (owner, other) for owner, other in kinds.tasks().items()}
        for key in settings.keys() - plain.keys():
            if key not in owners:
                raise unknown_key((str(key),), (*cls.model_fields, *filter(None, owners)))
            owner, other = owners[key]
            section = _read_section(other, settings[key])
            if kind in (other, task.OWN):
                plain[key] = section
            elif changed := next(iter(section.model_dump(exclude_defaults=True)), None):
                raise ValueError(f"{key}.{changed} is not used by task {name}; leave it out, or set task: {owner}")
        if kind.settings:
            plain.setdefault(kind.section, kind.settings())
        return plain

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, name: str) -> str:
        if name not in kinds.tasks():
            reference.parse(name, "task", kinds.tasks())
        return name

    @model_validator(mode="after")
    def _refit_has_validation(self) -> RunConfig:
        if self.train.refit and not (self.task_kind.from_prices and self.data.valid_from_train):
            raise ValueError(
                "train.refit adds the validation dates to the training: it needs data.valid_from_train above 0 and a "
                "task of prices or an npz file"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        for key in self.task_kind.ignored:
            if getattr(self.data, key) != DataConfig.model_fields[key].default:
                raise ValueError(f"data.{key} is not used by task {self.task}; leave it out")
        if self.task_kind.windows and self.task_kind.windows not in self.model.takes:
            fitting = [kind for kind, model in kinds.models().items() if self.task_kind.windows in model.takes]
            raise ValueError(
                f"model.kind {self.model.kind} is not for task {self.task}; take {', '.join(fitting)} or your own"
            )
        self.task_kind.check(self)
        return self

    @classmethod
    def all_fields(cls) -> Mapping[str, FieldInfo]:
        """Return every setting, with the sections of all tasks."""
        owners = [kind for kind in kinds.tasks().values() if kind.settings]
        return cls.model_fields | {kind.section: FieldInfo(annotation=kind.settings) for kind in owners}

    def for_task(self: R, name: str) -> R:
        """Return these settings for another task, with its section. Flags may still change them: they are not checked.

        Raises ValueError for a section of the old task that was changed.
        """
        sections = self._take_sections(name, {"task": name, **self.sections})
        copy = self.model_copy(update={"task": name})
        object.__setattr__(copy, "__pydantic_extra__", {key: sections[key] for key in sections if key != "task"})
        return copy

    @property
    def task_kind(self) -> TaskKind:
        """What is known of the task without its class."""
        return task.find(self.task)

    @property
    def sections(self) -> dict[str, Frozen]:
        """The task's own section by its key, if it has one."""
        return dict(self.__pydantic_extra__ or {})

    def section(self, of: type[S]) -> S:
        """Return the section of this class, or its defaults where the settings have none."""
        return next((section for section in self.sections.values() if isinstance(section, of)), of())

    @property
    def own_task(self) -> Reference | None:
        """Reference to the user's own task; None for a built-in one."""
        return None if self.task in kinds.tasks() else reference.parse(self.task, "task", kinds.tasks())

    def give(self, named: Mapping[str, Any]) -> None:
        """Count the task and the model as given by the user where `named`, plain settings of the user's, has them."""
        model = named.get("model")
        kind = model.get("kind") if isinstance(model, Mapping) else getattr(model, "kind", None)
        for text, own in ((named.get("task"), self.own_task), (kind, self.model.own)):
            if text and own:
                admission.give(own)

    def keep_sources(self: R, run: Path, *, trusted: bool) -> R:
        """The settings with the user's files replaced by the run's own copies, which are made where missing.

        Raises ConfigError for a task or a model that may not run, and for a file that differs from the run's copy.
        """
        own, model = self.own_task, self.model.own
        for python in filter(None, (own, model)):
            admission.admit(run, python, trusted=trusted)
        changes: dict[str, object] = {}
        if own and not own.module:
            changes["task"] = f"{source.keep(own, run)}:{own.name}"
        if model and not model.module:
            kind = f"{source.keep(model, run)}:{model.name}"
            changes["model"] = self.model.model_copy(update={"kind": kind})
        return self.model_copy(update=changes)

    def check_own(self) -> None:
        """Import the user's task and model where they may run here, and check them.

        So that a wrong one is refused before there is a folder of its name. What may not run is refused later, by the
        folder that it came with. Raises ConfigError.
        """
        if (own := self.own_task) and admission.is_known(own):
            self.check_judge(contract.load_task(own))
        if isinstance(self.model, OwnModel) and admission.is_known(self.model.own):
            contract.load_model(self.model.own, self.model.options)

    def check_judge(self, task: object) -> None:
        """Raise ConfigError for a task of the user's, or its class, with a loss that its judge does not know."""
        if own := self.own_task:
            contract.check_judge(task, own, {kind.task for kind in kinds.tasks().values()})

    def check_extras(self) -> None:
        """Raises ConfigError for a package of an extra that these settings need and that is not installed here."""
        for extra, packages in filter(None, (self.model.needs, *self.task_kind.list_extras(self))):
            require(extra, packages)

    @property
    def batch_size(self) -> int:
        """Global windows per step, whatever the number of workers."""
        return self.train.batch_size * (max(self.num_workers, 1) if self.train.per_worker_batch else 1)

    @property
    def lr(self) -> float:
        """Learning rate; with a per-worker batch it grows with the workers (linear scaling rule,
        Goyal et al. 2017, arXiv:1706.02677).
        """
        return self.train.lr * (max(self.num_workers, 1) if self.train.per_worker_batch else 1)

    @property
    def fingerprint(self) -> str:
        """Hash (16 hex digits) of what decides the numbers: task, data, model, train.

        Workers, device, threads and places are left out, so that a laptop's run and a cluster's pair up.
        """
        train = self.train.model_dump(mode="json", exclude=set(PLACES)) | {"batch_size": self.batch_size, "lr": self.lr}
        for key in LATER_KEYS:
            if train[key] == TrainConfig.model_fields[key].default:
                del train[key]
        parts = {
            "task": own.identity if (own := self.own_task) else self.task,
            "data": self.task_kind.identity(self),
            "model": self.model.identity,
            "train": train,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def run_config(self) -> RunConfig:
        """These settings without the fields that a script adds to them."""
        return RunConfig(**{name: getattr(self, name) for name in (*RunConfig.model_fields, *self.sections)})


def _read_section(kind: TaskKind, value: object) -> Frozen:
    """Return a task's section. Raises ValidationError whose keys begin with that of the section."""
    assert kind.settings
    try:
        return kind.settings.model_validate(value)
    except ValidationError as error:
        raise prefix(error, kind.section) from None
