"""Settings of a model: the base of all kinds, and those of a model of the user's own.

Each built-in kind has a class of its own with the settings that it uses. `ModelConfig(kind="lstm", hidden=32)` and the
section `model` of a settings file give an object of the kind's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic.fields import FieldInfo

from sp500.config import kinds
from sp500.config.frozen import Frozen, setting
from sp500.plugins import reference
from sp500.plugins.reference import Reference
from sp500.schema import unknown_key

Form = Literal["series", "image", "tokens"]
"""What a window is: rows of numbers, an image, or tokens of a text."""
Forecast = Literal["numbers", "classes"]
"""What is forecast of a window."""


class ModelConfig(Frozen):
    """The kind of a model and its settings."""

    network: ClassVar[str] = ""
    """Module and name of what makes the network: `maker(shape, **used)`."""
    estimator: ClassVar[str] = ""
    """Module and name of the `Kind` of an estimator, which has a `fit` of its own in place of a network."""
    losses: ClassVar[frozenset[str]] = frozenset()
    """Of an estimator: the values of train.loss that it minimises."""
    forecasts: ClassVar[frozenset[Forecast]] = frozenset({"numbers", "classes"})
    """What it can forecast."""
    copies: ClassVar[float] = 1.0
    """Of an estimator: memory of the flattened windows and of what fitting makes of them, per byte of the windows."""
    takes: ClassVar[frozenset[Form]] = frozenset({"series", "image"})
    """Windows that it can read."""
    packs: ClassVar[bool] = False
    """Whether several of one shape train faster as one batched model, as measured (docs/LOG.md): an LSTM of batched
    products takes four times as long as torch's own."""
    starts_naive: ClassVar[bool] = True
    """Whether its last layer `head` is set to the naive forecast before training."""
    has_tokenizer: ClassVar[bool] = False
    """Whether the folder `path` may bring a tokenizer."""
    needs: ClassVar[tuple[str, tuple[str, ...]] | None] = None
    """The extra that it needs, and the packages of that."""

    kind: str = setting("", agents=True)
    """{models} | your own: FILE.py:NAME or package.module:NAME, with its options as --model.options.NAME VALUE.
    Default: by the task."""

    def __new__(cls, *_: object, **settings: object) -> Any:
        """Make an object of the kind's class, whose __init__ Python then calls."""
        of = _class_of(settings) if cls is ModelConfig else cls
        return super().__new__(of)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Keep the help of `kind`, whose default each class changes."""
        cls.model_fields["kind"].description = ModelConfig.model_fields["kind"].description

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, settings: Any, handler: Callable[[Any], Any]) -> Any:
        """Read plain settings as those of their kind. A key of another kind may stay if it has its default."""
        if not isinstance(settings, Mapping):
            return handler(settings)
        if cls is ModelConfig:
            return _class_of(settings).model_validate(settings)
        kind = settings.get("kind") or cls.model_fields["kind"].default
        if _class_of({"kind": kind}) is not cls:
            raise ValueError(f"model.kind {kind} has other settings than those of {cls.__name__}; name the kind once")
        used = {name: value for name, value in settings.items() if name in cls.model_fields}
        for name in settings.keys() - used.keys():
            _check_unused(cls, str(kind), name, settings[name])
        return handler({**used, "kind": kind})

    @classmethod
    @cache  # a search asks for it with every trial
    def all_fields(cls) -> Mapping[str, FieldInfo]:
        """Return every setting of this kind, or of all kinds if this is the base of them."""
        if cls is not ModelConfig:
            return cls.model_fields
        owners: list[type[ModelConfig]] = [*kinds.models().values(), OwnModel]
        return {name: field for owner in reversed(owners) for name, field in owner.model_fields.items()}

    @classmethod
    def leave_unused(cls, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return plain settings without those that only other kinds have. Raises ConfigError for an unknown kind."""
        own = _class_of(plain).model_fields
        return {name: value for name, value in plain.items() if name in own or name not in cls.all_fields()}

    def for_kind(self, kind: str) -> ModelConfig:
        """Return these settings for another kind, with those that it has. They are not checked: flags may change them.

        Raises ValueError for a changed setting that the kind lacks, and for a kind that does not exist.
        """
        of, plain = _class_of({"kind": kind}), self.model_dump()
        for name in plain.keys() - of.model_fields.keys():
            _check_unused(of, kind, name, plain[name])
        return of.model_construct(**{name: plain[name] for name in plain if name in of.model_fields} | {"kind": kind})

    @property
    def own(self) -> Reference | None:
        """Reference to the user's own model; None for a built-in one."""
        return None

    @property
    def used(self) -> dict[str, object]:
        """The settings of its kind by name."""
        return {name: getattr(self, name) for name in sorted(type(self).model_fields) if name != "kind"}

    @property
    def dropout_rate(self) -> float:
        """The share of activations dropped in training; 0 for a model that drops none."""
        return float(getattr(self, "dropout", 0.0))

    @property
    def relative_cost(self) -> int:
        """About how much a window costs: hidden x layers, or those of the default kind if it has neither."""
        return int(getattr(self, "hidden", 64) * getattr(self, "layers", 2))

    @property
    def identity(self) -> dict[str, object]:
        """The kind and the settings, which decide the numbers."""
        return {"kind": self.kind, **self.used}

    def after(self, stages: int) -> ModelConfig:
        """Return the settings of an estimator that ends after as many stages (trees, say); of others, these."""
        del stages
        return self

    def count_products(self, length: int, features: int) -> int | None:
        """Return the approximate multiplications of a forward pass of a window [length, features]; None if unknown."""
        return None

    @classmethod
    def describe_size(cls, settings: Mapping[str, Any]) -> str:
        """Return the size of a model with these plain settings for a reader, such as 64x2; empty if it has none."""
        keys = [name for name in ("hidden", "layers") if name in cls.model_fields]
        return "x".join(str(settings.get(name, cls.model_fields[name].default)) for name in keys)


class OwnModel(ModelConfig):
    """Settings of a model of the user's own. It may read all of them, and gets its options by name."""

    takes: ClassVar[frozenset[Form]] = frozenset({"series", "image", "tokens"})

    hidden: int = setting(64, gt=0, agents=True)
    """Width of a hidden layer."""
    layers: int = setting(2, gt=0, agents=True)
    """Hidden layers."""
    heads: int = setting(4, gt=0, agents=True)
    """Attention heads."""
    dropout: float = setting(0.1, ge=0, lt=1, agents=True)
    """Share of activations dropped in training."""
    options: dict[str, JsonValue] = Field({})
    """Options of a model of your own, by name."""

    @property
    def own(self) -> Reference:
        """Reference to the user's own model."""
        return reference.parse(self.kind, "model", kinds.models())

    @property
    def identity(self) -> dict[str, object]:
        """The hash of its file and the settings, which decide the numbers."""
        return {"kind": self.own.identity, **self.model_dump(mode="json", exclude={"kind"})}

    @classmethod
    def describe_size(cls, settings: Mapping[str, Any]) -> str:
        """Return an empty text: the meaning of its settings is unknown."""
        return ""


def _class_of(settings: Mapping[Any, Any]) -> type[ModelConfig]:
    """Return the class of a kind. Raises ConfigError for one that is neither built in nor a reference."""
    kind = str(settings.get("kind") or kinds.default_model())
    if known := kinds.models().get(kind):
        return known
    reference.parse(kind, "model", kinds.models())
    return OwnModel


def _check_unused(cls: type[ModelConfig], kind: str, name: str, value: object) -> None:
    """Raise ValueError for a key that the kind does not use, unless it has the default of a kind that does."""
    owners = {other: of for other, of in kinds.models().items() if name in of.model_fields}
    if name in OwnModel.model_fields:
        owners["your own"] = OwnModel
    if not owners:
        raise unknown_key(("model", str(name)), cls.model_fields)
    defaults = [owner.model_fields[name].get_default() for owner in owners.values()]
    if value not in defaults and not (isinstance(value, list) and tuple(value) in defaults):
        way_out = "name a model of your own with --model.kind" if name == "options" else "leave it out"
        raise ValueError(f"model.{name} is not used by model.kind {kind}, only by {', '.join(owners)}; {way_out}")
