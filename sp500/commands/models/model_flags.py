"""Flags that all verbs of `sp500 models` share, and how they end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.console.output import concluded


class ModelFlags(Frozen):
    """Flags of every verb."""

    runs_dir: Path = Field(default_factory=lambda: folders.runs(os.environ))
    """Folder of the runs. Default: $SP500_RUNS_DIR, or runs."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout."""


F = TypeVar("F", bound=ModelFlags)


def verb(kind: type[F], argv: Sequence[str], name: str, act: Callable[[F], tuple[dict[str, Any], str]]) -> int:
    """Parse, act, and print its plain data or its text, to the exit code."""

    def acted() -> tuple[str, int]:
        config = (tyro.conf.FlagCreatePairsOff,)
        flags = tyro.cli(kind, prog=f"sp500 {name}", args=list(argv), config=config)
        plain, text = act(flags)
        return json.dumps(plain, indent=1) if flags.json_output else text, 0

    return concluded(acted, only_json="--json" in argv)
