"""One experiment in its run folder: locked, resumable, and with a record however it ends."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import yaml
from pydantic import ConfigDict

from sp500.config import IOConfig, RunConfig
from sp500.config.frozen import Frozen, setting
from sp500.config.program import ProgramConfig
from sp500.credentials import mask
from sp500.errors import ConfigError, DiskError, SP500Error
from sp500.formatting import flatten, reference_name
from sp500.machine import ray_address
from sp500.machine.disk import FULL, disk_error
from sp500.machine.memory import is_out_of_memory
from sp500.plugins import source
from sp500.runs.record import RunRecord, Status, make_record
from sp500.runs.store import Run, RunStore

E = TypeVar("E", bound="Runnable")
log = logging.getLogger(__name__)

IDLE = ("io.", "train.device", "train.threads", "data.cache_dir", "data.fallback")
"""Settings that decide nothing about a run's numbers."""
# Flags that steer a script and decide nothing about the run: not kept in config.yaml.
FLAGS = {"config", "resume", "overwrite", "trust_source", "dry_run", "print_config", "json_output"}


class Runnable(Frozen):
    """Settings of what leaves a run: an experiment with a model, or a program of the user's."""

    experiment: ClassVar[str]
    """Its name in the record."""
    if TYPE_CHECKING:
        io: IOConfig
        num_workers: int
        resume: bool
        overwrite: bool
        trust_source: bool

        @property
        def fingerprint(self) -> str:
            """Hash of what decides the numbers."""

        @property
        def subject(self) -> str:
            """The part of a run's name between the experiment and the time."""

        def run_config(self) -> RunConfig | ProgramConfig:
            """Return the settings that a record keeps."""

        def give(self, named: Mapping[str, Any]) -> None:
            """Count what `named` has as given by the user."""

    @property
    def arm(self) -> str:
        """The arm of a comparison that this run is."""
        return "ray" if self.num_workers else "solo"

    @property
    def joins_cluster(self) -> bool:
        """True if it runs on the Ray cluster of RAY_ADDRESS, if there is one."""
        return bool(self.num_workers)

    def check_address(self) -> None:
        """Raise ConfigError for a RAY_ADDRESS that it would have to connect to and cannot."""
        if self.joins_cluster:
            ray_address.check(ray_address.read())

    def settings(self) -> dict[str, object]:
        """Return effective settings as plain data, re-runnable with --config: without the flags and the run's name."""
        left_out = dict.fromkeys(FLAGS, True) | {"io": {"run_name"}}
        return source.make_portable(mask(self.model_dump(mode="json", exclude=left_out)))

    def decisive(self) -> dict[str, object]:
        """Return what a resumed run must have in common with the run it continues, in addition to the fingerprint."""
        added = set(type(self).model_fields) - set(type(self.run_config()).model_fields) - FLAGS
        return self.model_dump(mode="json", include=added)

    def display_settings(self) -> dict[str, object]:
        """Return what the record of an ended run depends on, in addition to that."""
        return self.model_dump(mode="json", include={"num_workers", "eval"})

    def name_changed_source(self, wanted: Runnable) -> str:
        """Return which Python of the user's differs from that of the settings `wanted`; '' if none."""
        return ""

    def check_extras(self) -> None:
        """Raise ConfigError for a package of an extra that is needed and not installed."""

    def check_own(self) -> None:
        """Raise ConfigError for Python of the user's that is wrong, if it may run here."""

    def check_start(self) -> None:
        """Raise ConfigError for what a new run could not do, before it has a folder, which would take its name."""

    def check_ended(self, record: RunRecord) -> None:
        """Raise ConfigError if files that these settings name have changed since the run ended."""

    if TYPE_CHECKING:

        def keep_sources(self: E, run: Path, *, trusted: bool) -> E:
            """Return the settings with what the run keeps of the user's. Raises ConfigError for what may not run."""


class Experiment(RunConfig, Runnable):
    """Settings of an experiment: a run's, and what the script adds."""

    model_config = ConfigDict(extra="allow")  # the task's section, as RunConfig has it; the last base forbids it

    resume: bool = setting(False, agents=True)
    """Continue the run of that name; an ended one prints its record."""
    overwrite: bool = False
    """Delete the run of that name first."""
    trust_source: bool = False
    """Run the Python files in a run's folder (source/), even if no command on this machine has used them. Only for runs
    you trust."""

    @property
    def subject(self) -> str:
        """The part of a run's name between the experiment and the time."""
        return reference_name(self.model.kind)

    def name_changed_source(self, wanted: Runnable) -> str:
        """Return which file of the user's task or model differs from that of the settings `wanted`; '' if none."""
        assert isinstance(wanted, Experiment)
        for own, other in ((self.own_task, wanted.own_task), (self.model.own, wanted.model.own)):
            if own and other and own.identity != other.identity:
                return f"{other.path} differs from the run's {own.path}"
        return ""


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM; `code` is its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def execute(config: E, main: Callable[[E, Run], RunRecord]) -> RunRecord:
    """Run `main` in the run's folder and write its record; a run that ended well and is resumed gives its record.

    Raises ConfigError for an extra that is not installed, a RAY_ADDRESS of no use, a name that is taken or a run of
    other settings, and what `main` raises, after a record of it was written.
    """
    if config.resume and config.overwrite:
        raise ConfigError("--resume continues the run that --overwrite deletes: give one of them")
    config.check_extras()
    config.check_address()
    store, name = RunStore(config.io.save_dir), run_name(config)
    if not (config.resume and (store.run(name).path.exists() or config.io.archive)):
        config.check_own()
        config.check_start()
    with store.open(name, resume=config.resume, overwrite=config.overwrite) as run:
        archiving, done = _archiving(config, run), None
        if config.resume:
            done = run.record()
            _check_same(run, config, ended=done is not None and done.status == "ok")
        with archiving:
            if done is not None and done.status == "ok":
                config.check_ended(done)
                return done
            config = config.keep_sources(run.path, trusted=config.trust_source)
            return _attempt(config, main, run, _begin(config, run))


def _archiving(config: Runnable, run: Run) -> AbstractContextManager[None]:
    """Copy the run to io.archive while it runs. Before that, fetch what the archive has and this machine lacks."""
    if not config.io.archive:
        return nullcontext()
    from sp500.runs.archive import copying, fetching

    fetching.catch_up(config.io.archive, run, config.fingerprint, resume=config.resume)
    return copying.copy_run(config.io.archive, run, config.fingerprint)


def _attempt(config: E, main: Callable[[E, Run], RunRecord], run: Run, earlier: float) -> RunRecord:
    """Run `main` and write a record however it ends; `earlier`: the seconds of the attempts before."""

    def end(status: Status, reason: str) -> RunRecord:
        """Write the record of a run that did not end well. A full disk must not hide the error that ended it."""
        record = _after(earlier, _make_unfinished(config, run, status, reason))
        try:
            run.write_record(record)
        except DiskError as error:
            log.warning("the run's record is lost: %s", error)
        return record

    try:
        record = _after(earlier, main(config, run))
        run.write_record(record)
    except (KeyboardInterrupt, SystemExit) as error:
        end("stopped", f"signal {error.code - 128}" if isinstance(error, Interrupted) else type(error).__name__)
        raise
    except SP500Error as error:
        end("failed", str(error))
        raise
    except Exception as error:  # of any library or of a user's code: it is recorded, and raised again
        if is_out_of_memory(error):
            return end("out_of_memory", str(error) or "the machine's memory is exhausted")
        if isinstance(error, OSError) and error.errno in FULL:  # of a library, which seldom names the file
            named = disk_error(Path(error.filename or run.path), error)
            end("failed", str(named))
            raise named from error
        # The record says that it failed; the traceback is for us.
        end("failed", f"{type(error).__name__}: {error}")
        raise
    return record


def outline(config: Runnable, plan: Mapping[str, object]) -> dict[str, object]:
    """Return what would be run, for --dry-run; the long config comes last."""
    config.check_address()
    name = run_name(config)
    return {
        "run": name,
        "folder": str(config.io.save_dir / name),
        "experiment": config.experiment,
        "arm": config.arm,
        "fingerprint": config.fingerprint,
        **plan,
        "config": config.settings(),
    }


def run_name(config: Runnable) -> str:
    """Return the given name, or one made from experiment, subject and the time."""
    if config.io.run_name:
        return config.io.run_name
    subject = re.sub(r"[^a-z0-9]+", "-", config.subject.lower())[:20]
    return f"{config.experiment}-{subject}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid() % 0x10000:04x}"


def _check_same(run: Run, config: Runnable, *, ended: bool) -> None:
    path = run.path / "config.yaml"
    if not path.exists():
        return
    try:
        plain = yaml.safe_load(path.read_text())
        stored = type(config).model_validate(
            source.make_absolute(plain, run.path) if isinstance(plain, dict) else plain
        )
    except (OSError, yaml.YAMLError, ValueError) as error:  # a decoder's and pydantic's errors are ValueErrors
        raise ConfigError(
            f"{path} cannot be used ({str(error).splitlines()[0]}), so it is not known whether the run has the same "
            "settings. Put the file back or choose another --name"
        ) from error
    pairs = [
        (settings.fingerprint, settings.decisive(), settings.display_settings() if ended else None)
        for settings in (stored, config)
    ]
    if pairs[0] != pairs[1]:
        raise ConfigError(
            f"run {run.name!r} has other settings than these ({_difference(stored, config) or path}): --resume "
            "continues it with its own settings; for new settings choose another --name"
        )


def _difference(stored: Runnable, wanted: Runnable) -> str:
    """Return the first settings that decide numbers and differ, with the kept and the given value."""
    if changed := stored.name_changed_source(wanted):
        return changed
    ours, theirs = (flatten(config.settings()) for config in (stored, wanted))
    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name) and not name.startswith(IDLE)]
    return ", ".join(f"{name} {ours.get(name)}, not {theirs.get(name)}" for name in names[:3])


def _begin(config: Runnable, run: Run) -> float:
    """Write what a kill must not lose, before anything is done. Returns the seconds of earlier attempts."""
    earlier = run.spent_seconds()
    run.write_config(config.settings())
    begun = _make_unfinished(config, run, "stopped", "killed, or not ended yet", started=datetime.now(UTC))
    run.write_start(_after(earlier, begun))
    return earlier


def _make_unfinished(
    config: Runnable, run: Run, status: Status, reason: str, *, started: datetime | None = None
) -> RunRecord:
    """Return a record without results, of a run that begins now or, if a time of its start was kept, began then."""
    begun = None if started else run.start_record()
    record = make_record(
        config.run_config(),
        name=run.name,
        experiment=config.experiment,
        arm=config.arm,
        status=status,
        reason=reason,
        started=begun.started if begun else started,
    )
    return record.model_copy(update={"machine": begun.machine}) if begun else record


def _after(earlier: float, record: RunRecord) -> RunRecord:
    return record.model_copy(update={"seconds": record.seconds.model_copy(update={"earlier": earlier})})
