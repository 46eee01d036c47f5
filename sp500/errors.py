"""Every error a user can cause or meet, with the exit code it ends in.

    SP500Error                1  the run failed
    ├── ConfigError           2  a setting, flag or file of settings is wrong
    │   ├── RunExists         2  the run name is taken
    │   └── RunLocked         2  another process is writing that run
    ├── DataError             3  prices or arrays that cannot be used as they are
    ├── CheckpointError       1  a checkpoint is damaged or belongs to another run
    ├── DiskError             1  a file cannot be written: the disk is full, the folder is not writable
    ├── LimitExceeded         4  a budget or a deadline is passed
    └── ResourcesError        1  the machine or cluster lacks what was asked for
        ├── Refused           1  a cluster refused a job, and would again
        └── Unreachable       1  a cluster does not answer, and may later

A message names the field, file or row, what was expected, and what to do.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TypeVar

T = TypeVar("T")


class SP500Error(Exception):
    """Root of the tree; `exit_code` is what a script ends with."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, after the traceback of its cause, and not one of this package."""
        causes = traceback.format_exception(self.__cause__) if self.__cause__ else []
        return [*causes, f"{type(self).__name__}: {self}"]


class ConfigError(SP500Error):
    """A setting, flag or settings file is wrong."""

    exit_code = 2


class RunExists(ConfigError):
    """A run of that name exists and `--resume` was not given."""


class RunLocked(ConfigError):
    """Another process holds that run."""


class DataError(SP500Error):
    """Prices or arrays that cannot be used as they are."""

    exit_code = 3


class CheckpointError(SP500Error):
    """A checkpoint is damaged or belongs to another run."""


class DiskError(SP500Error, OSError):
    """A file cannot be written. Also an OSError, with its errno, for callers that handle those."""

    def __str__(self) -> str:
        """Return only the message, without the number that OSError adds."""
        return str(self.args[0])


class LimitExceeded(SP500Error):
    """A budget or a deadline is passed."""

    exit_code = 4


class ResourcesError(SP500Error):
    """The machine or cluster lacks what was asked for."""


class Refused(ResourcesError):
    """A cluster refused a job, and would refuse it again."""


class Unreachable(ResourcesError):
    """A cluster does not answer; it may later."""


def attempt(work: Callable[[], T], on_error: Callable[[Exception], T]) -> T:
    """Return what `work` returns or, for any exception of it, what `on_error` makes of that.

    For work whose failure must not end its caller: one trial of a search, one job of a queue, a model that a server
    loads. `on_error` has to keep or log what it gets. Signals and exits pass.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - code of users and libraries may raise anything; `on_error` records it
        return on_error(error)


@contextmanager
def undo_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block does not reach its end, also for a signal or an exit. The exception is raised again."""
    with ExitStack() as stack:
        stack.callback(undo)
        yield
        stack.pop_all()


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages that only `pip install sp500[name]` installs. Raises ConfigError if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing(error.name, name) from None


def require(name: str, packages: tuple[str, ...]) -> None:
    """Look for packages of an extra, without importing them. Raises ConfigError for one that is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(package, name)


def _missing(package: str | None, name: str) -> ConfigError:
    return ConfigError(f"{package} is not installed: pip install 'sp500[{name}]'")
