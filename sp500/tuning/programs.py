"""Trials that are programs: their values, their candidates, and the loop that runs them.

An arm has slots, on this machine or on a cluster, and the loop is the same for all: it starts programs in free slots
and handles what they measure as it comes.
"""

from __future__ import annotations

import hashlib
import json
import math
import selectors
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sp500.config.program import ProgramConfig
from sp500.errors import ConfigError
from sp500.machine.cores import usable_cores
from sp500.programs.output import Measurement
from sp500.programs.program import End, Program, Request
from sp500.runs.results import Overrides
from sp500.runs.trials import TrialResult
from sp500.tuning.arm import Arm, Collector, Report
from sp500.tuning.axes import Axis, Choice, Space, read
from sp500.tuning.presets import read_space
from sp500.tuning.stopper import StopRule
from sp500.tuning.suggest import Candidates, Trial

LOG = "log"


def load_space(name: str) -> Space:
    """Read a space of values for a command. Raises ConfigError that names file, key and way out."""

    def build(name: str, key: str, entry: Any) -> Axis:
        try:
            axis = read(entry, whole=True)
        except ValueError as error:
            raise ConfigError(f"search space {name}: {key} {error}") from None
        if isinstance(axis, Choice) and any(value is None for value in axis.values):
            raise ConfigError(f"search space {name}: {key} has a null value; write '' for an empty word")
        return axis

    if not name:
        raise ConfigError("--space is missing: name a YAML file with a line for each {NAME} of the command")
    return read_space(name, build)


def candidates(config: ProgramConfig, space: Space) -> Candidates[Trial]:
    """Return the trials of a space of values for one program."""
    fingerprint = config.fingerprint

    def build(overrides: Overrides) -> Trial:
        text = json.dumps([fingerprint, overrides], sort_keys=True)
        return Trial(hashlib.sha256(text.encode()).hexdigest()[:16], dict(overrides))

    def count() -> int | None:
        sizes = [axis.count for axis in space.axes.values()]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    return Candidates(space, lambda: [build(overrides) for overrides in space.list_grid()], count, build)


class Slots(ABC):
    """Places in which programs run."""

    count: int
    """How many programs run at once."""
    cores: int
    """The cores that they run on."""
    cluster: Mapping[str, float] = MappingProxyType({})
    """What the cluster has that they run on; empty without one."""

    @abstractmethod
    def start(self, trial: str, request: Request) -> None:
        """Start the program of a trial."""

    @abstractmethod
    def wait(self) -> list[tuple[str, Measurement | End]]:
        """Return what has come from programs, by their trials; waits for something. After its end a slot is free."""

    @abstractmethod
    def stop(self, trial: str) -> None:
        """Ask the program of a trial to end, if it has not yet."""

    @abstractmethod
    def close(self) -> None:
        """End all programs."""


class LocalSlots(Slots):
    """Processes of this machine."""

    def __init__(self, count: int) -> None:
        self.count, self.cores = count, usable_cores() if count > 1 else 1
        self._programs: dict[str, Program] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, trial: str, request: Request) -> None:
        """Start the program of a trial."""
        self._programs[trial] = Program(request)
        self._selector.register(self._programs[trial], selectors.EVENT_READ, trial)

    def wait(self) -> list[tuple[str, Measurement | End]]:
        """Return what has come from programs."""
        come = []
        for key, _ in self._selector.select():
            events = self._programs[key.data].read()
            if events and isinstance(events[-1], End):
                self._selector.unregister(key.fd)
                del self._programs[key.data]
            come += [(key.data, event) for event in events]
        return come

    def stop(self, trial: str) -> None:
        """Ask the program of a trial to end."""
        if program := self._programs.get(trial):
            program.stop()

    def close(self) -> None:
        """End all programs, at once."""
        for program in self._programs.values():
            program.hang_up()
        for program in self._programs.values():
            program.close()
        self._selector.close()


@dataclass
class Running:
    """A trial whose program runs, and what it has printed so far. `sign` is -1 if the highest value is the best."""

    trial: Trial
    sign: int
    best: Measurement | None = None
    last: Measurement | None = None
    epochs: int = 0
    began: float = field(default_factory=time.monotonic)
    rung: int = 0
    """The last one that it came to."""
    stopped: bool = False
    """True if it has its result and was asked to end."""

    def add(self, line: Measurement) -> None:
        """Take a line with the metric."""
        self.last, self.epochs = line, max(self.epochs, line.epoch)
        if self.best is None or self.sign * line.value < self.sign * self.best.value:
            self.best = line

    def result(self, end: End | None = None, metric: str = "") -> TrialResult:
        """Return the result of what it has printed: that of its best line, if it ended well or was stopped."""
        reason = end.reason if end else ""
        if not reason and not self.best:
            last = f"; its last line: {end.tail[-1][:200]}" if end and end.tail else ""
            reason = f"printed no {metric}, which --metric names{last}"
        facts: dict[str, Any] = {"status": "failed", "reason": reason}
        if self.best and not reason:
            facts = {"status": "ok", "valid_loss": self.sign * self.best.value, "best_epoch": self.best.epoch}
        return TrialResult(
            id=self.trial.id,
            overrides=self.trial.overrides,
            epochs=self.epochs,
            samples=(self.last.samples or 0) if self.last else 0,
            seconds=end.seconds if end else time.monotonic() - self.began,
            cpu_seconds=end.cpu_seconds if end and not reason else None,
            finished=datetime.now(UTC),
            **facts,
        )


class ProgramArm(Arm[Trial]):
    """Programs in slots."""

    def __init__(
        self,
        name: str,
        config: ProgramConfig,
        slots: Slots,
        folder: Path,
        *,
        maximize: bool,
        environment: Mapping[str, str],
        stop: StopRule | None = None,
    ) -> None:
        """`environment`: variables of each program in addition to those of its node."""
        self.name = name  # type: ignore[misc]
        self.at_once = slots.count  # type: ignore[misc]
        self.cores, self.cluster = slots.cores, slots.cluster
        self.peak_bytes = 0
        self._config, self._slots, self._folder = config, slots, folder
        self._stop = stop.make() if stop else None
        self.fingerprint = config.fingerprint
        self._sign, self._environment = -1 if maximize else 1, environment
        self._running: dict[str, Running] = {}

    def __exit__(self, *error: object) -> None:
        """End programs that still run."""
        self._slots.close()

    def build_failure(self, trial: Trial, reason: str) -> TrialResult:
        """Return the result of a trial that ended without one."""
        return Running(trial, self._sign).result(End("lost", detail=reason))

    def run(self, collector: Collector[Trial]) -> None:
        """Run the collector's programs until it has no more."""
        while True:
            while len(self._running) < self._slots.count and (pack := collector.take()):
                self._start(collector, pack[0])
            if not self._running:
                return
            for trial, event in self._slots.wait():
                self._handle(collector, self._running[trial], event)

    def _start(self, collector: Collector[Trial], trial: Trial) -> None:
        if self._config.fingerprint != self.fingerprint:
            raise ConfigError(
                f"{self._config.template.script or 'a file'} changed while the search runs, so that its trials would "
                "not compare: put it back and continue with --resume, or search under another --name"
            )
        folder = self._folder / trial.id
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed: a trial starts from its values
        folder.mkdir(parents=True)
        running = self._running[trial.id] = Running(trial, self._sign)
        try:
            argv = self._config.template.fill(trial.overrides, folder)
        except ConfigError as error:
            collector.add(running.result(End("start", detail=str(error))))
            del self._running[trial.id]
            return
        self._slots.start(trial.id, self._config.build_request(argv, folder / LOG, self._environment))

    def _handle(self, collector: Collector[Trial], running: Running, event: Measurement | End) -> None:
        if isinstance(event, Measurement):
            if not running.stopped:
                running.add(event)
                self._decide(collector, running, event.epoch)
            return
        del self._running[running.trial.id]
        self.peak_bytes = max(self.peak_bytes, event.peak_bytes)
        if not running.stopped:
            collector.add(running.result(event, self._config.metric))

    def _decide(self, collector: Collector[Trial], running: Running, epoch: int) -> None:
        """Ask at each rung that the program has passed since, and stop it for the first no.

        It runs on meanwhile: a program does not wait.
        """
        for rung in self._stop.rungs(running.rung, epoch) if self._stop else ():
            running.rung, result = rung, running.result()
            assert result.valid_loss is not None
            if not collector.goes_on(Report(result, rung, result.valid_loss)):
                running.stopped = True
                self._slots.stop(running.trial.id)
                return
