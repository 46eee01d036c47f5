"""Flags that describe a job: `[--file JOB.yaml] [flags] -- COMMAND`, the flags over the file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from sp500 import schema
from sp500.console import arguments, entry
from sp500.errors import ConfigError
from sp500.jobs.fields import Command
from sp500.jobs.spec import JobSpec

F = TypeVar("F", bound="JobFlags")


class JobFlags(JobSpec):
    """A job, and the file that may hold its description."""

    argv: Annotated[Command, tyro.conf.Suppress] = ()
    file: Path | None = None
    """YAML file of these settings, with the command under argv; flags override it."""

    def spec(self) -> JobSpec:
        """Return only the job."""
        return JobSpec(**self.model_dump(include=set(JobSpec.model_fields)))


def parse(model: type[F], argv: Sequence[str], verb: str, shared: Mapping[str, object] | None = None) -> F:
    """Return the flags; all after a lone -- is the job's command. Exits with 2 on a wrong flag. Raises ConfigError.

    `shared`: what a file with many jobs says of them all.
    """
    flags, words = split(argv)
    counted = Counter(word.split("=")[0] for word in flags if word.startswith("--"))
    if twice := [flag for flag, count in counted.items() if count > 1]:
        raise ConfigError(f"duplicate flag {twice[0]}: use it once, with all its values after it")
    base = _base(model, entry.flag(flags, "--file"), words, shared or {})
    try:
        return arguments.parse(
            model,
            flags,
            f"sp500 {verb}",
            default=base,
            description=f"{model.__doc__} All after a lone -- is its command: sp500 {verb} --workers 4 -- python ...",
            rules=(pairs, settings_file),
        )
    except SystemExit as end:
        if end.code and "--" not in argv:
            print(f"Put the job's command after a lone --: sp500 {verb} --workers 4 -- python ...", file=sys.stderr)
        raise


def _base(model: type[F], file: str | None, words: list[str], shared: Mapping[str, object]) -> F:
    """Return what the flags change: the file's job, or the defaults."""
    settings = {**shared, **(read_file(file) if file else {}), **({"argv": words} if words else {})}
    return schema.validate(model, settings, f"--file {file}" if file else "")


def read_file(file: str) -> dict[str, object]:
    """Return the settings of a job, or of many under `jobs`. Raises ConfigError for YAML that is neither."""
    expected = "a job, such as argv, workers and memory, or jobs: with a list"
    settings: Mapping[Any, object] = schema.read_mapping(Path(file), "--file", expected)
    # YAML 1.1 reads the key `on` as a truth value.
    return {"on" if key is True else key: value for key, value in settings.items()}


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first lone --, and those after it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def pairs(of: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, str]] | None:
    """Let tyro read mappings as NAME=VALUE."""
    if of.type != dict[str, str]:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_parse_pairs,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={text}" for name, text in value.items()],
    )


def settings_file(of: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, object]] | None:
    """Let tyro read settings from a file."""
    if of.type != dict[str, object]:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FILE",
        instance_from_str=lambda words: schema.read_mapping(Path(words[0]), "--settings", "settings of the experiment"),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [yaml.safe_dump(value, default_flow_style=True).strip()],
    )


def _parse_pairs(words: list[str]) -> dict[str, str]:
    split_words = [word.partition("=") for word in words]
    if not all(equals for _, equals, _ in split_words):
        # What came may be a secret, so it is not repeated.
        raise ValueError("a word has no =")
    return {name: value for name, _, value in split_words}
