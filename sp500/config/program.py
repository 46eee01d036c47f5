"""Settings of a program of the user's that runs unchanged, in place of a task and a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sp500.config import IOConfig
from sp500.config.frozen import Frozen
from sp500.credentials import check_settings
from sp500.errors import ConfigError
from sp500.machine.disk import file_digest
from sp500.machine.units import size_bytes
from sp500.plugins import admission
from sp500.programs import template
from sp500.programs.output import find_group
from sp500.programs.program import Limits, Request

PLACES = ("num_workers", "time_limit", "memory_limit", "device", "io")
"""Settings that decide no number of a program."""


class ProgramConfig(Frozen):
    """A program of your own that runs unchanged and prints a metric."""

    command: str = ""
    """The program with its arguments, as one word. {NAME} is replaced by a value, {folder} by the folder of the trial
    or run; {{ is a brace. No shell reads it."""
    file: tuple[Path, ...] = ()
    """Files that decide its numbers, in addition to its script: a resumed run refuses to go on with others."""
    metric: str = Field("valid_loss", min_length=1)
    """The number that counts: a key of the lines of JSON that it prints, such as '"epoch": 3, "valid_loss": 0.2' in
    braces."""
    metric_pattern: str = ""
    """Regular expression that finds the metric in a line, in place of JSON: its group of that name, else its first
    unnamed group. Groups named epoch and samples count too."""
    num_workers: int = Field(0, ge=0)
    """0: one process, without Ray; N >= 1: N processes under Ray Train, with the environment that torchrun sets."""
    time_limit: float | None = Field(None, gt=0)
    """Seconds that one program may take."""
    memory_limit: str | None = None
    """Memory of one program with all its processes, such as 2GiB."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """On Ray. cuda: a GPU for each program or worker; auto: if the cluster has enough."""
    io: IOConfig = IOConfig()

    @model_validator(mode="before")
    @classmethod
    def _has_no_password(cls, settings: Any) -> Any:
        if isinstance(settings, Mapping):
            check_settings(settings)  # settings are kept in records and repeated in messages
        return settings

    @field_validator("command")
    @classmethod
    def _is_a_command(cls, command: str) -> str:
        if command:
            template.parse(command)
        return command

    @field_validator("metric_pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _finds_the_metric(self) -> ProgramConfig:
        if self.metric_pattern and not find_group(re.compile(self.metric_pattern), self.metric):
            raise ValueError(
                f"metric_pattern: {self.metric_pattern!r} has no group for {self.metric}; put the number in "
                "parentheses: loss: ([0-9.e-]+)"
            )
        return self

    @field_validator("memory_limit")
    @classmethod
    def _is_a_size(cls, size: str | None) -> str | None:
        if size:
            size_bytes(size)
        return size

    @property
    def template(self) -> template.Template:
        """The words of the command. Raises ConfigError without one."""
        return template.parse(self.command)

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes."""
        return size_bytes(self.memory_limit) if self.memory_limit else None

    @property
    def identity(self) -> dict[str, object]:
        """The settings that decide its numbers, with a hash of each file. Raises ConfigError for an unreadable file."""
        script = self.template.script
        files = {str(path): _hash(path) for path in (*([script] if script else []), *self.file)}
        decisive = set(ProgramConfig.model_fields) - {*PLACES, "file"}
        return {**self.model_dump(mode="json", include=decisive), "files": files}

    @property
    def fingerprint(self) -> str:
        """Hash (16 hex digits) of what decides the numbers: not of workers, limits, device and places."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """0: the seed of a program is its own."""
        return 0

    @property
    def threads(self) -> int:
        """0: threads are the program's own."""
        return 0

    def build_request(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> Request:
        """Return the request for this program with these words and variables."""
        limits = Limits(self.time_limit, self.memory_bytes)
        return Request(argv, str(Path.cwd()), environment, str(log), self.metric, self.metric_pattern, limits)

    def run_config(self) -> ProgramConfig:
        """Return these settings without the fields that a script adds to them."""
        return ProgramConfig.model_construct(**{name: getattr(self, name) for name in ProgramConfig.model_fields})

    def give(self, named: Mapping[str, Any]) -> None:
        """Count the command as given by the user if `named`, plain settings of the user's, has it."""
        if named.get("command"):
            admission.give_command(self.command)


def _hash(path: Path) -> str:
    try:
        file = path.expanduser()
        status = file.stat()
        return _digest(file, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise ConfigError(
            f"file {path}: cannot be read ({error.strerror}); a run knows its files by their hash"
        ) from None


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed_ns: int, inode: int) -> str:
    """Return the hash of a file, which is read again only if it has changed: each trial of a search asks for it."""
    return file_digest(path)
