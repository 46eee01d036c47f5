"""Settings models as flags: what --help shows, and the errors of wrong values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro
from help_text import empty_defaults
from pydantic import Field, model_validator

from sp500.cli import VERBS, main
from sp500.config import Frozen
from sp500.console import arguments
from sp500.errors import ConfigError


class Section(Frozen):
    """How to train."""

    learning_rate: float = Field(0.1, gt=0)
    """Step of the optimiser,
    per update."""
    shuffle: bool = True
    """Draw windows at random."""


class Settings(Frozen):
    """Settings of a test."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of the run."""
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders to read."""
    steps: int = 0
    """Number of steps."""
    price: Annotated[float, Field(gt=0)] | None = None
    """Price of an hour."""
    days: tuple[int, ...] | None = None
    """Days to look at."""
    place: Literal["pod", "ray"] | None = None
    """Where it runs."""
    verbose: bool = False
    """Print more."""
    secrets: tuple[Annotated[str, Field(max_length=3)], ...] = ()
    """What no message shows."""
    train: Section = Section()

    @model_validator(mode="after")
    def _price_needs_a_place(self) -> Settings:
        if self.price and not self.place:
            raise ValueError("--price needs --place")
        if self.steps < 0:
            raise ValueError("steps: below 0 with train.learning_rate 0.1; leave in_secret out")
        return self


def test_flags_give_the_settings_over_the_default():
    base = Settings(run="old", steps=3, train=Section(learning_rate=0.5))
    words = ["new", "a", "b", "--place", "pod", "--train.no-shuffle", "--verbose"]
    settings = arguments.parse(Settings, words, default=base)
    train = Section(learning_rate=0.5, shuffle=False)
    assert settings == Settings(
        run="new", folders=(Path("a"), Path("b")), steps=3, place="pod", verbose=True, train=train
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train.learning-rate", "-1"], "--train.learning-rate: Input should be greater than 0, got -1.0"),
        (["--price", "0"], "--price: Input should be greater than 0, got 0.0"),
        (["--price", "2"], "--price needs --place"),
        (["--steps", "-1"], "--steps: below 0 with --train.learning-rate 0.1; leave in_secret out"),
        (["--secrets", "hush"], "--secrets: String should have at most 3 characters, got (hidden)"),
    ],
)
def test_error_names_the_flag_of_a_refused_value(words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        arguments.parse(Settings, ["run", *words])


def test_help_has_no_empty_defaults_and_no_none(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        arguments.parse(Settings, ["--help"], "test")
    lines = [" ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()]
    assert {
        "usage: test [-h] [OPTIONS] RUN [FOLDER ...]",
        "RUN Name of the run. (required)",
        "[FOLDER ...] Folders to read.",
        "--steps INT Number of steps. (default: 0)",
        "--days [INT [INT ...]]",
        "--price FLOAT Price of an hour.",
        "--place {pod,ray}",
        "--verbose Print more.",
        "How to train.",
        "Step of the optimiser, per update. (default: 0.1)",
        "--train.shuffle, --train.no-shuffle",
    } <= set(lines)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_shows_a_default_that_says_nothing(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([*verb.split(), "--help"])
    assert end.value.code == 0
    assert empty_defaults(capsys.readouterr().out) == []
