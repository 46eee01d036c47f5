"""Stdout only for the result, stderr for everything else, and signals that become one exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import FrameType

from sp500.console.streams import open_closed_streams, write_stdout
from sp500.errors import ConfigError, ResourcesError, SP500Error
from sp500.execution import Interrupted
from sp500.machine.system import process_limit

NO_HOME = "Could not determine home directory."
"""Message of pathlib if HOME is not set and the user has no name, as in many containers."""
NO_THREAD = "can't start new thread"
"""Message of threading if the system has no more threads."""
# Control characters but line feeds, tabs, and the escapes that set colors.
CONTROL = re.compile(r"(?!\x1b\[[0-9;]*m)[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run_command(act: Callable[[], tuple[str, int]], *, only_json: bool, hint: str = "") -> int:
    """Act, print the resulting text, and return the exit code.

    Any SP500Error becomes one message and its exit code, a signal 128 and its number; `hint` says how to go on then.
    """
    open_closed_streams()
    _bypass_proxies(os.environ)
    with Output(only_json) as output:
        try:
            text, code = act()
        except SP500Error as error:
            output.say(f"{_public_name(error)}: {error}")
            return error.exit_code
        except (RuntimeError, FileNotFoundError, BlockingIOError) as error:
            if not (explained := _explain(error)):
                raise
            output.say(f"{_public_name(explained)}: {explained}")
            return explained.exit_code
        except KeyboardInterrupt as error:
            output.say("; ".join(filter(None, ["interrupted", hint])))
            return error.code if isinstance(error, Interrupted) else 130
        except OSError as error:  # of stdout, to which --help is printed: a full disk, or a reader that has seen enough
            if not (code := write_stdout()) and not isinstance(error, BrokenPipeError):
                raise
            return code
        try:
            output.result(text)
        except BrokenPipeError:
            output.close()
        except OSError as error:  # a full disk
            output.say(f"stdout cannot be written: {error.strerror}")
            return code or 1
        return code


def _explain(error: Exception) -> SP500Error | None:
    """Return the error to report if there is no home folder, no current folder, or no process left; None otherwise."""
    if str(error) == NO_HOME:
        return ConfigError(f"user {os.getuid()} has no home folder: set HOME, or --state-dir for the queue")
    if str(error) == NO_THREAD or isinstance(error, BlockingIOError):
        most = process_limit()
        limit = "of the container" if most is None else f"{most} (ulimit -u)"
        return ResourcesError(f"no further process or thread can be started ({error}). Raise the limit, {limit}")
    try:
        Path.cwd()
    except FileNotFoundError:
        return ConfigError("the current folder was deleted. Change to one that exists: cd ~")
    return None


def _bypass_proxies(environment: MutableMapping[str, str]) -> None:
    """Keep requests to this machine from the proxies that the environment names, as browsers do.

    A proxy cannot reach what listens here: a dashboard, a forwarded port, a tracking server. Libraries and child
    processes differ in which of the two names they read.
    """
    direct = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if direct != "*" and any(name.lower() in PROXIES for name in environment):
        missing = [host for host in LOOPBACK if host not in direct.split(",")]
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(filter(None, [direct, *missing]))


def _public_name(error: SP500Error) -> str:
    """Return the class of the error that sp500.errors has; those of single modules are of no use to a reader."""
    return next(base.__name__ for base in type(error).__mro__ if base.__module__ == SP500Error.__module__)


class Output:
    """Keeps stdout for the result: with --json, what libraries and their child processes print goes to stderr."""

    def __init__(self, only_json: bool) -> None:
        self._only_json = only_json
        self._stdout = -1

    def __enter__(self) -> Output:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        if self._only_json:
            sys.stdout.flush()
            self._stdout = os.dup(1)
            os.dup2(2, 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._only_json:
            sys.stdout.flush()
            os.dup2(self._stdout, 1)
            os.close(self._stdout)

    def result(self, text: str) -> None:
        """Write the result, the only thing that belongs on stdout; nothing if there is none."""
        sys.stdout.flush()
        if not text:
            return
        data = (printable(text).rstrip("\n") + "\n").encode(errors="backslashreplace")
        with os.fdopen(os.dup(self._stdout if self._only_json else 1), "wb") as file:
            file.write(data)

    def close(self) -> None:
        """Write nothing more, not even what is buffered."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(self, text: str) -> None:
        """Print a message to the user."""
        print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return a text without control characters except colors: names of tickers and clusters' words are in it."""
    return CONTROL.sub("", text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Another signal while cleaning up must not cut the clean-up short with a traceback.
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(128 + number)
