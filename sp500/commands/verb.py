"""The `main` of a verb: its flags, what it does with them, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from pydantic import BaseModel, Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.console import arguments
from sp500.console.output import run_command

M = TypeVar("M", bound=BaseModel)
Main = Callable[[Sequence[str]], int]


class JsonFlags(Frozen):
    """Flags of a verb that can answer to a program."""

    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout."""


class RunsFlags(JsonFlags):
    """Flags of a verb on runs."""

    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder of the runs. $SP500_RUNS_DIR sets another default."""


def verb(name: str, model: type[M], act: Callable[[M], tuple[str, int]], hint: str = "") -> Main:
    """Return the `main` of `sp500 NAME`: parse the flags, act, print the text, and return the exit code.

    Exits with 2 on a wrong flag. `hint` says after a signal how to go on.
    """

    def main(argv: Sequence[str]) -> int:
        return run_command(
            lambda: act(arguments.parse(model, argv, f"sp500 {name}")), only_json="--json" in argv, hint=hint
        )

    return main
