"""The built-in tasks: what each is called, its settings, and where its class is. No torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from sp500.config.frozen import Frozen, setting
from sp500.config.model import Forecast
from sp500.config.task import TaskKind
from sp500.data.images.settings import ImagesConfig
from sp500.data.text.settings import TextConfig

if TYPE_CHECKING:
    from sp500.config import RunConfig


class Returns(TaskKind):
    """Log returns of the days ahead."""

    task = "sp500.tasks.returns:Returns"
    title = "Returns"
    previous = "previous return"
    windows = "series"
    from_prices = True
    packs = True
    scales_targets = True
    has_losses = True
    forecasts: ClassVar[Forecast | None] = "numbers"
    binary = "direction"


class Direction(Returns):
    """Direction of prices: whether they rise."""

    task = "sp500.tasks.returns:Direction"
    title = "Direction"
    previous = "previous direction"
    scales_targets = False
    has_losses = False
    forecasts = "classes"
    binary = ""


class VolatilityConfig(Frozen):
    """How volatility is measured, and which rivals a forecast has."""

    measure: Literal["closes", "parkinson", "garman_klass"] = "closes"
    """Variance of a day: from closes, or from its range, which needs open, high and low."""
    garch: bool = False
    """Also compare with GARCH(1,1) and GJR-GARCH with t errors, fitted again each year (extra `garch`)."""


class Volatility(Returns):
    """Volatility of the days ahead, relative to its exponentially weighted average."""

    task = "sp500.tasks.volatility:Volatility"
    title = "Volatility"
    section, settings = "volatility", VolatilityConfig
    ignored = ("npz_path", "features")
    persistent = True
    binary = ""
    defaults: ClassVar[Mapping[str, Mapping[str, str | float]]] = {"data": {"horizon": 5, "window": 22}}
    naive: ClassVar[Mapping[str, str]] = {
        "last": "last value",
        "ewma": "EWMA",
        "har": "HAR",
        "garch": "GARCH(1,1)-t",
        "gjr": "GJR-GARCH-t",
    }

    def name_naive(self, name: str) -> str:
        """Return the full name of a naive forecast."""
        return self.naive.get(name) or super().name_naive(name)

    def list_extras(self, config: RunConfig) -> list[tuple[str, tuple[str, ...]]]:
        """Return the package that fits GARCH models."""
        return [("garch", ("arch",))] if config.section(VolatilityConfig).garch else []


class Images(TaskKind):
    """Classes of images."""

    task = "sp500.tasks.images:Images"
    title = "Classes of images"
    windows = "image"
    section, settings = "images", ImagesConfig
    ignored = ("source", "npz_path", "features")
    has_losses = False
    defaults: ClassVar[Mapping[str, Mapping[str, str | float]]] = {
        "model": {"kind": "cnn"},
        "train": {"lr": 3e-3, "batch_size": 64},
    }

    def identity(self, config: RunConfig) -> dict[str, object]:
        """Return the settings that decide its data: files by their names."""
        images = config.section(ImagesConfig)
        named = {**images.model_dump(), "source": Path(images.source).name}
        return {**named, **config.data.cut, **config.data.order, **config.data.copies}


class Language(TaskKind):
    """The next byte or token of a text."""

    task = "sp500.tasks.language:Language"
    title = "Next bytes"
    windows = "tokens"
    section, settings = "text", TextConfig
    ignored = ("source", "npz_path", "features", "test_fraction", "valid_from_train")
    has_losses = False
    defaults: ClassVar[Mapping[str, Mapping[str, str | float]]] = {
        "model": {"kind": "gpt"},
        "train": {"lr": 3e-3, "batch_size": 32},
    }

    def identity(self, config: RunConfig) -> dict[str, object]:
        """Return the settings that decide its data: files by their names."""
        return {**config.section(TextConfig).identity, **config.data.order, **config.data.copies}

    def check(self, config: RunConfig) -> None:
        """Check that a model brings its own tokenizer if the settings ask for that. Raises ValueError."""
        if config.section(TextConfig).tokenizer == "model" and not config.model.has_tokenizer:
            raise ValueError(f"text.tokenizer model: model.kind {config.model.kind} has none; use bytes, bpe or a path")

    def list_extras(self, config: RunConfig) -> list[tuple[str, tuple[str, ...]]]:
        """Return the packages of a tokenizer."""
        plain = config.section(TextConfig).tokenizer in ("", "bytes")
        return [] if plain else [("llm", ("tokenizers", "transformers"))]


class SyntheticConfig(Frozen):
    """The smoke job's classification set, made by every worker for itself."""

    samples: int = setting(4096, gt=9, agents=True)
    """Samples in all."""
    features: int = setting(128, gt=0, agents=True)
    """Features per sample."""
    classes: int = setting(4, gt=1, agents=True)
    """Classes, one Gaussian cluster each."""


class Synthetic(TaskKind):
    """Classes of Gaussian clusters: the smoke job."""

    task = "sp500.tasks.synthetic:Synthetic"
    title = "Synthetic classes"
    windows = "series"
    section, settings = "synthetic", SyntheticConfig
    ignored = ("features",)
    has_losses = False
    forecasts = "classes"
    real = False
    packs = True

    def identity(self, config: RunConfig) -> dict[str, object]:
        """Return the settings that decide its data."""
        return {**config.section(SyntheticConfig).model_dump(), **config.data.order}


BUILT_IN: dict[str, TaskKind] = {
    "returns": Returns(),
    "direction": Direction(),
    "volatility": Volatility(),
    "images": Images(),
    "language": Language(),
    "synthetic": Synthetic(),
}
"""Tasks by name, the default first."""
