"""Flags that describe a job: `[--file JOB.yaml] [flags] -- COMMAND`, the flags over the file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from pydantic import ValidationError, model_validator
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from sp500.console import entry
from sp500.errors import ConfigError
from sp500.jobs.fields import Command
from sp500.jobs.spec import JobSpec
from sp500.schema import explain

F = TypeVar("F", bound="JobFlags")


class JobFlags(JobSpec):
    """A job, and the file that may hold its description."""

    argv: Annotated[Command, tyro.conf.Suppress] = ()
    file: Path | None = None
    """YAML file of these settings and the argv; flags override it."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, data: Any, validate: Callable[[Any], F]) -> F:
        """Turn pydantic's errors into a ConfigError: tyro would print values that may be secret."""
        try:
            return validate(data)
        except ValidationError as error:
            secret = {"env", "secrets"}
            faults = [fault | ({"input": "(hidden)"} if secret & set(fault["loc"]) else {}) for fault in error.errors()]
            raise ConfigError("\n".join(explain(cls, fault) for fault in faults)) from None

    def spec(self) -> JobSpec:
        """The job alone."""
        return JobSpec(**self.model_dump(include=set(JobSpec.model_fields)))


def parse(model: type[F], argv: Sequence[str], verb: str) -> F:
    """The flags; all after a lone -- is the job's command. Exits with 2 on a wrong flag. Raises ConfigError."""
    flags, words = split(argv)
    counted = Counter(word.split("=")[0] for word in flags if word.startswith("--"))
    if twice := [flag for flag, count in counted.items() if count > 1]:
        raise ConfigError(f"duplicate flag {twice[0]}: give it once, with all its values after it")
    base = _base(model, entry.flag(flags, "--file"), words)
    try:
        return tyro.cli(
            model,
            prog=f"sp500 {verb}",
            description=f"{model.__doc__} All after a lone -- is its command: sp500 {verb} --workers 4 -- python ...",
            default=base,
            args=flags,
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=WRITTEN,
        )
    except SystemExit as end:
        if end.code and "--" not in argv:
            print(f"Put the job's command after a lone --: sp500 {verb} --workers 4 -- python ...", file=sys.stderr)
        raise


def _base(model: type[F], file: str | None, words: list[str]) -> F:
    """What the flags change: the file's job, or the defaults."""
    settings = entry.read_mapping(Path(file), "--file", "a job, such as argv, workers and memory") if file else {}
    try:
        return model.model_validate(settings | ({"argv": words} if words else {}))
    except ConfigError as error:
        raise ConfigError(f"--file {file}: {error}" if file else str(error)) from None


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first lone --, and those after it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


WRITTEN = ConstructorRegistry()


@WRITTEN.primitive_rule
def pairs(of: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, str]] | None:
    """Mappings are written as NAME=VALUE."""
    if of.type != dict[str, str]:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_parse_pairs,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={text}" for name, text in value.items()],
    )


@WRITTEN.primitive_rule
def settings_file(of: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, object]] | None:
    """Settings are read from a file."""
    if of.type != dict[str, object]:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FILE",
        instance_from_str=lambda words: entry.read_mapping(Path(words[0]), "--settings", "settings of the experiment"),
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [yaml.safe_dump(value, default_flow_style=True).strip()],
    )


def _parse_pairs(words: list[str]) -> dict[str, str]:
    split_words = [word.partition("=") for word in words]
    if wrong := [name for name, equals, _ in split_words if not equals]:
        raise ValueError(f"expected NAME=VALUE, found {wrong[0]!r}")
    return {name: value for name, _, value in split_words}
