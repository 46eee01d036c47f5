"""Every setting of a run, checked once at the door.

Pydantic only, so that `--help` is instant; the line under a field is its help text. The settings of a kind of model,
and a task's own section, belong to their owner (sp500.models.settings, sp500.tasks.settings) and are put together here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, SerializeAsAny, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from sp500.config import estimators, kinds, task
from sp500.config.data import DataConfig as DataConfig
from sp500.config.frozen import Alias, setting
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


class EvalConfig(Frozen):
    """Settings by which forecasts are judged."""

    threshold: float = setting(0.5, gt=0, lt=1, agents=True)
    """Probability from which a direction forecast counts as up."""
    save_cm: bool = setting(True, agents=True)
    """The confusion matrix of a classification goes to the run's folder; --eval.no-save-cm leaves it out."""
    cost_bps: float = setting(1.0, ge=0, agents=True)
    """Trading cost per unit of turnover, in basis points."""


def archive_uri(uri: str) -> str:
    """Return the address of an archive without the / at its end. Raises ValueError, which repeats no password."""
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
    """Folders and addresses for results."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an address may hold a password

    save_dir: Annotated[Path, Alias("--runs-dir")] = Path("runs")
    """Folder of all runs."""
    run_name: Annotated[str | None, Alias("--name")] = setting(None, agents="short")
    """Name of this run's folder. Default: made from experiment, model and time."""
    project: Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")] = ""
    """Project of the run, for compare --project. Default: that of the job (jobs submit --project)."""
    archive: str | None = None
    """s3://BUCKET/PREFIX or file:///FOLDER that the run is copied to while it runs. Default: no copy. Credentials
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
        """Read the section of the task. Sections of other tasks may stay if they have their defaults."""
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
        if self.train.loss != TrainConfig.model_fields["loss"].default and self.task_kind.has_losses is False:
            raise ValueError(
                f"train.loss {self.train.loss} is not used by task {self.task}, which has a loss of its own"
            )
        if self.task_kind.windows and self.task_kind.windows not in self.model.takes:
            fitting = [kind for kind, model in kinds.models().items() if self.task_kind.windows in model.takes]
            raise ValueError(
                f"model.kind {self.model.kind} is not for task {self.task}; use {', '.join(fitting)} or your own"
            )
        if self.model.estimator:
            estimators.check_settings(self)
        self.task_kind.check(self)
        return self

    @classmethod
    @cache  # a search asks for it with every trial
    def all_fields(cls) -> Mapping[str, FieldInfo]:
        """Return every setting, with the sections of all tasks."""
        owners = [kind for kind in kinds.tasks().values() if kind.settings]
        return cls.model_fields | {kind.section: FieldInfo(annotation=kind.settings) for kind in owners}

    def for_task(self: R, name: str) -> R:
        """Return these settings for another task, with its section. They are not checked: flags may still change them.

        Raises ValueError for a section of the old task that was changed.
        """
        sections = self._take_sections(name, {"task": name, **self.sections})
        copy = self.model_copy(update={"task": name})
        object.__setattr__(copy, "__pydantic_extra__", {key: sections[key] for key in sections if key != "task"})
        return copy

    @property
    def task_kind(self) -> TaskKind:
        """The description of the task that needs no import of its class."""
        return task.find(self.task)

    @property
    def sections(self) -> dict[str, Frozen]:
        """The task's own section by its key, if it has one."""
        return dict(self.__pydantic_extra__ or {})

    def section(self, of: type[S]) -> S:
        """Return the section of this class, or its defaults if the settings have none."""
        return next((section for section in self.sections.values() if isinstance(section, of)), None) or of()

    @property
    def own_task(self) -> Reference | None:
        """Reference to the user's own task; None for a built-in one."""
        return None if self.task in kinds.tasks() else reference.parse(self.task, "task", kinds.tasks())

    def give(self, named: Mapping[str, Any]) -> None:
        """Count the task and the model as given by the user if `named`, plain settings of the user's, has them."""
        model = named.get("model")
        kind = model.get("kind") if isinstance(model, Mapping) else getattr(model, "kind", None)
        for text, own in ((named.get("task"), self.own_task), (kind, self.model.own)):
            if text and own:
                admission.give(own)

    def keep_sources(self: R, run: Path, *, trusted: bool) -> R:
        """Return the settings with the user's files replaced by the run's own copies, which are made if missing.

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
        """Import the user's task and model if they may run here, and check them.

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
            contract.check_unused(task, own, self.train.model_dump(exclude_defaults=True))
            if self.train.loss != TrainConfig.model_fields["loss"].default:
                contract.check_named_loss(task, own, self.train.loss)

    def check_extras(self) -> None:
        """Raise ConfigError for a package of an extra that these settings need and that is not installed here."""
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
    def seed(self) -> int:
        """The seed of the training."""
        return self.train.seed

    @property
    def threads(self) -> int:
        """Threads of a training process; 0: as many as there are cores."""
        return self.train.threads

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
        """Return these settings without the fields that a script adds to them."""
        values = {name: getattr(self, name) for name in (*RunConfig.model_fields, *self.sections)}
        return RunConfig.model_construct(**values)  # they were validated as these


def _read_section(kind: TaskKind, value: object) -> Frozen:
    """Return a task's section. Raises ValidationError whose keys begin with that of the section."""
    assert kind.settings
    try:
        return kind.settings.model_validate({} if value is None else value)
    except ValidationError as error:
        raise prefix(error, kind.section) from None
