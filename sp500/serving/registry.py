"""Registry of models: versions, promotion, rollback, canary and shadow, kept among the runs.

    runs/.models/NAME.json     the only record: servers read it every two seconds

A file is replaced as a whole under a lock of the kernel, so a killed writer leaves the state before or after.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sp500.config import RUN_NAME
from sp500.errors import ConfigError, RunLocked
from sp500.machine.disk import disk_error, explain_errors, write_atomic
from sp500.runs import checksums

FOLDER, DEFAULT = ".models", "main"
MOST_CHAMPIONS = 100
"""Of all that answered; a rollback goes back one of them."""


class Version(BaseModel):
    """A run that was promoted. `version` counts from 1."""

    model_config = ConfigDict(frozen=True)

    version: int
    run: str = Field(pattern=RUN_NAME.pattern)
    weights_sha256: str
    interface: str
    """Hash of what a request has to hold."""
    promoted: datetime
    by: str


class Canary(BaseModel):
    """A version that answers a share of the requests."""

    model_config = ConfigDict(frozen=True)

    version: int
    share: float = Field(gt=0, lt=1)


class Model(BaseModel):
    """Content of a model's file."""

    model_config = ConfigDict(frozen=True)

    name: str
    versions: tuple[Version, ...] = ()
    champions: tuple[int, ...] = ()
    """Versions that answered, the last of them now."""
    canary: Canary | None = None
    shadow: int | None = None
    """A version whose answers are logged, and not sent."""

    @model_validator(mode="after")
    def _numbers_are_versions(self) -> Model:
        numbers = (*self.champions, *((self.canary.version,) if self.canary else ()), *filter(None, (self.shadow,)))
        if unknown := [number for number in numbers if not 1 <= number <= len(self.versions)]:
            raise ValueError(f"it has no version {unknown[0]}")
        return self

    def version(self, number: int) -> Version:
        """Return the version of that number."""
        return self.versions[number - 1]

    def find(self, run: str, weights_sha256: str) -> Version | None:
        """Return the version of a run with these weights, if there is one."""
        wanted = run, weights_sha256
        return next((version for version in self.versions if (version.run, version.weights_sha256) == wanted), None)

    @property
    def champion(self) -> Version | None:
        """The version that answers; None before the first promotion."""
        return self.version(self.champions[-1]) if self.champions else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a cluster's own uid has no name
        return str(os.getuid())


class Registry:
    """The models of a runs folder."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.folder = runs / FOLDER

    def names(self) -> list[str]:
        """Return the models that have a version."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, name: str) -> Model:
        """Return a model, without versions if it was never promoted. Raises ConfigError for a damaged file."""
        path = self._path(name)
        try:
            return Model.model_validate_json(checksums.unseal(path.read_bytes()))
        except FileNotFoundError:
            return Model(name=name)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not a model's file ({str(error).splitlines()[0]}); restore it") from None

    def promote(
        self, name: str, run: str, weights_sha256: str, interface: str, *, canary: float | None, shadow: bool
    ) -> Model:
        """Let a run answer: all requests, the share `canary`, or none (`shadow`). The same run keeps its version.

        Raises ConfigError for a run that accepts other requests than the model's champion.
        """
        with self._changing(name) as before:
            champion, model = before.champion, before
            if champion and champion.interface != interface:
                raise ConfigError(
                    f"run {run} accepts other requests than run {champion.run} of {name}. Promote it as another --model"
                )
            if not champion and (canary or shadow):
                raise ConfigError(f"model {name} has no champion yet: promote one without --canary and --shadow first")
            version = model.find(run, weights_sha256)
            if not version:
                version = Version(
                    version=len(model.versions) + 1,
                    run=run,
                    weights_sha256=weights_sha256,
                    interface=interface,
                    promoted=datetime.now(UTC),
                    by=_user(),
                )
                model = model.model_copy(update={"versions": (*model.versions, version)})
            # A run has one role.
            other_shadow = None if model.shadow == version.version else model.shadow
            other_canary = None if model.canary and model.canary.version == version.version else model.canary
            if canary:
                role = Canary(version=version.version, share=canary)
                change: dict[str, object] = {"canary": role, "shadow": other_shadow}
            elif shadow:
                change = {"shadow": version.version, "canary": other_canary}
            else:
                again = model.champions[-1:] == (version.version,)
                champions = model.champions if again else (*model.champions, version.version)[-MOST_CHAMPIONS:]
                change = {"champions": champions, "canary": None, "shadow": None}
            return self._write(model.model_copy(update=change))

    def rollback(self, name: str) -> Model:
        """End the canary and the shadow; if there are none, the champion before answers again.

        Raises ConfigError if there was none before.
        """
        with self._changing(name) as model:
            if model.canary or model.shadow:
                return self._write(model.model_copy(update={"canary": None, "shadow": None}))
            if len(model.champions) < 2:
                raise ConfigError(f"model {name} has no champion before this one")
            return self._write(model.model_copy(update={"champions": model.champions[:-1]}))

    def _path(self, name: str) -> Path:
        if not RUN_NAME.fullmatch(name):
            raise ConfigError(f"model {name!r}: expected small letters, digits, '.', '_' and '-'")
        return self.folder / f"{name}.json"

    @contextmanager
    def _changing(self, name: str) -> Iterator[Model]:
        path = self._path(name)
        with explain_errors(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(path.with_suffix(".lock")).acquire(timeout=10)
        except Timeout:
            raise RunLocked(f"{path}: another process has been changing it for 10 s") from None
        except OSError as error:
            raise disk_error(path, error) from error
        with lock:
            yield self.read(name)

    def _write(self, model: Model) -> Model:
        write_atomic(self._path(model.name), checksums.seal(model))
        return model
