"""Every setting of a run, checked once at the door.

Pydantic only, so that `--help` is instant; the line under a field is its help text. One flat `ModelConfig` serves all
kinds, since a union would become subcommands; a key that the chosen kind does not use is refused by name.
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

from pydantic import ConfigDict, Field, field_validator, model_validator

from sp500.config.frozen import Frozen as Frozen
from sp500.config.model import MODEL_KEYS as MODEL_KEYS
from sp500.config.model import ModelConfig as ModelConfig
from sp500.config.text import TextConfig as TextConfig
from sp500.config.train import LATER_KEYS as LATER_KEYS
from sp500.config.train import PLACES
from sp500.config.train import TrainConfig as TrainConfig
from sp500.credentials import check_settings, without_password
from sp500.errors import require
from sp500.plugins import admission, contract, reference, source
from sp500.plugins.reference import Reference

R = TypeVar("R", bound="RunConfig")

RUN_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")

TASKS = ("returns", "direction", "images", "language", "synthetic")
PRICE_TASKS = ("returns", "direction")
"""Tasks whose windows are cut from prices, or from an npz file of windows."""
SECTION_OF = {"synthetic": "synthetic", "images": "images", "language": "text"}
"""Section of the settings that describes a task's data, where that is not `data`."""
ONLY_TASK = {"cnn": "images", "timm": "images", "gpt": "language", "hf": "language"}
"""The one task that a kind of model is for."""
EXTRA_OF = {
    "hf": ("llm", ("transformers", "tokenizers", "huggingface_hub", "peft")),
    "timm": ("vision", ("timm", "torchvision")),
}
"""The extra that a kind of model needs, and its packages."""
UNUSED_DATA = {
    "images": ("source", "npz_path"),
    "language": ("source", "npz_path", "test_fraction", "valid_from_train"),
}
"""Keys of `data` that a task does not use, and that a user could mistake for its own."""
TASK_DEFAULTS: dict[str, dict[str, dict[str, str | float]]] = {
    "images": {"model": {"kind": "cnn"}, "train": {"lr": 3e-3, "batch_size": 64}},
    "language": {"model": {"kind": "gpt"}, "train": {"lr": 3e-3, "batch_size": 32}},
}
"""Where a task's defaults differ. Scripts and functions apply them under the settings that are given."""


class DataConfig(Frozen):
    """Which prices, which windows, which split."""

    source: str = "bundled"
    """bundled (real prices, offline) | yfinance | path of a CSV or Parquet file."""
    tickers: tuple[str, ...] = ()
    """Names of series; `stocks`: all but the index. None given: the index, or all that a file holds."""
    start: date | None = None
    """First date. Default: all there is (bundled stocks: 1996-01-01, earlier prices are too coarsely rounded)."""
    end: date | None = None
    """Last date. Default: all there is."""
    window: int = Field(30, gt=0)
    """Days of features that one forecast sees."""
    horizon: int = Field(1, gt=0)
    """Days ahead that are forecast."""
    test_fraction: float = Field(0.15, gt=0, lt=1)
    """Last part of the dates, held out for the test."""
    valid_from_train: float = Field(0.175, ge=0, lt=1)
    """Last part of the remaining dates (or of X_train) used for validation; 0: no validation."""
    gap: int | None = Field(None, ge=1)
    """Sessions left out between two splits. Default and minimum: window + horizon."""
    norm: Literal["zscore", "minmax", "none"] = "zscore"
    """Feature scaling, fitted on the training dates only."""
    shuffle_train: bool = True
    """Training windows come in a new order in every epoch; --data.no-shuffle-train keeps their order."""
    seed: int = Field(0, ge=0)
    """Seed of the batch order and of noisy copies: the same for every config of a search."""
    multiplier: int = Field(1, gt=0)
    """Size of the training set: the original and multiplier - 1 noisy copies of the training data."""
    augment: Literal["noise", "bootstrap"] = "noise"
    """How copies differ: noise on the features, or a price path of resampled daily returns."""
    noise: float = Field(0.1, ge=0)
    """Noise of a copy, in training standard deviations of each feature; of text the share of bytes drawn anew."""
    jitter: float = Field(0.0, ge=0)
    """Standard deviation of a factor around 1 per copy and feature."""
    npz_path: Path | None = None
    """Arrays X_train, y_train, X_test, y_test (X: samples, window, features) in place of prices."""
    real_moves: tuple[Annotated[str, Field(pattern=r"^[^:]+:\d{4}-\d{2}-\d{2}$")], ...] = ()
    """TICKER:YYYY-MM-DD of large moves that really happened and are no fault in the data."""
    cache_dir: Path = Path("~/.cache/sp500")
    """Where downloaded prices are kept."""
    fallback: Literal["bundled"] | None = None
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


class SyntheticConfig(Frozen):
    """The smoke job's classification set, made by every worker for itself."""

    samples: int = Field(4096, gt=9)
    """Samples in all."""
    features: int = Field(128, gt=0)
    """Features per sample."""
    classes: int = Field(4, gt=1)
    """Classes, one Gaussian cluster each."""


class ImagesConfig(Frozen):
    """Which images."""

    source: str = "digits"
    """digits (bundled with scikit-learn) | FILE.npz | folder of IDX files | folder with one folder per class."""
    shift: int = Field(0, ge=0, le=16)
    """Pixels by which a training image may be moved each way."""


class EvalConfig(Frozen):
    """How the forecasts are judged."""

    threshold: float = Field(0.5, gt=0, lt=1)
    """Probability from which a direction forecast counts as up."""
    save_cm: bool = True
    """The confusion matrix of a classification goes to the run's folder; --eval.no-save-cm leaves it out."""
    cost_bps: float = Field(1.0, ge=0)
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

    save_dir: Path = Path("runs")
    """Folder of all runs."""
    run_name: str | None = None
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
    """One run: what is forecast, from what, by which model, trained how."""

    task: str = "returns"
    """returns | direction (up or not) | images (classes) | language (next byte) | synthetic (smoke job) | your own:
    FILE.py:NAME or package.module:NAME."""
    num_workers: int = Field(0, ge=0)
    """0: this process, without Ray; N >= 1: Ray Train with N workers."""
    data: DataConfig = DataConfig()
    synthetic: SyntheticConfig = SyntheticConfig()
    images: ImagesConfig = ImagesConfig()
    text: TextConfig = TextConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    io: IOConfig = IOConfig()

    @model_validator(mode="before")
    @classmethod
    def _holds_no_password(cls, settings: Any) -> Any:
        """Settings are kept in records and repeated in messages."""
        check_settings(settings)
        return settings

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        if task not in TASKS:
            contract.check_task(reference.parse(task, "task", TASKS))
        return task

    @model_validator(mode="after")
    def _refit_has_validation(self) -> RunConfig:
        if self.train.refit and (self.task not in PRICE_TASKS or not self.data.valid_from_train):
            raise ValueError(
                "train.refit adds the validation dates to the training: it needs data.valid_from_train above 0 and a "
                "task of prices or an npz file"
            )
        return self

    @model_validator(mode="after")
    def _only_the_tasks_own(self) -> RunConfig:
        for task, name in SECTION_OF.items():
            section = getattr(self, name)
            for key, field in type(section).model_fields.items():
                if task != self.task and getattr(section, key) != field.default:
                    raise ValueError(f"{name}.{key} is not used by task {self.task}; leave it out, or set task: {task}")
        for key in UNUSED_DATA.get(self.task, ()):
            if getattr(self.data, key) != DataConfig.model_fields[key].default:
                raise ValueError(f"data.{key} is not used by task {self.task}; leave it out")
        if (only := ONLY_TASK.get(self.model.kind, self.task)) != self.task:
            raise ValueError(f"model.kind {self.model.kind} is for task {only}, not for {self.task}")
        if self.task == "language" and self.model.kind not in ("gpt", "hf") and not self.model.own:
            raise ValueError(f"model.kind is {self.model.kind}: task language takes gpt, hf or your own")
        if self.text.tokenizer == "model" and self.model.kind != "hf":
            raise ValueError("text.tokenizer model is that of model.kind hf; take bytes, bpe or a path")
        return self

    @property
    def own_task(self) -> Reference | None:
        """Reference to the user's own task; None for a built-in one."""
        return None if self.task in TASKS else reference.parse(self.task, "task", TASKS)

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
        task, model = self.own_task, self.model.own
        for own in filter(None, (task, model)):
            admission.admit(run, own, trusted=trusted)
        changes: dict[str, object] = {}
        if task and not task.module:
            changes["task"] = f"{source.keep(task, run)}:{task.name}"
        if model and not model.module:
            kind = f"{source.keep(model, run)}:{model.name}"
            changes["model"] = self.model.model_copy(update={"kind": kind})
        return self.model_copy(update=changes)

    def check_judge(self) -> None:
        """Raises ConfigError for a task of the user's whose loss its judge does not know."""
        if own := self.own_task:
            contract.check_judge(own)

    def check_extras(self) -> None:
        """Raises ConfigError for a package of an extra that these settings need and that is not installed here."""
        if self.model.kind in EXTRA_OF:
            require(*EXTRA_OF[self.model.kind])
        elif self.text.tokenizer not in ("", "bytes"):
            require("llm", ("tokenizers", "transformers"))

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
        data = self.data.model_dump(mode="json", exclude={"cache_dir", "fallback"}) | {
            "gap": self.data.purge,
            "source": Path(self.data.source).name,
            "npz_path": self.data.npz_path and self.data.npz_path.name,
        }
        order = {"seed": self.data.seed, "shuffle_train": self.data.shuffle_train}
        cut = {"test_fraction": self.data.test_fraction, "valid_from_train": self.data.valid_from_train}
        copies = self.data.model_dump(include={"multiplier", "augment", "noise", "jitter"})
        copied = copies if self.data.multiplier > 1 else {}
        images = {**self.images.model_dump(), "source": Path(self.images.source).name, **cut, **order, **copied}
        text = {**self.text.identity, **order, **copied}
        sections = {"synthetic": {**self.synthetic.model_dump(), **order}, "images": images, "language": text}
        parts = {
            "task": task.identity if (task := self.own_task) else self.task,
            "data": sections.get(self.task, data),
            "model": self.model.identity,
            "train": train,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def run_config(self) -> RunConfig:
        """These settings without the fields that a script adds to them."""
        return RunConfig(**{name: getattr(self, name) for name in RunConfig.model_fields})
