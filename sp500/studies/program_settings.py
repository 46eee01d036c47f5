"""Settings of a program of the user's, run once or searched. Light to import, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from sp500.config.program import ProgramConfig
from sp500.errors import ConfigError
from sp500.execution import Runnable
from sp500.machine import ray_address
from sp500.plugins import admission
from sp500.runs.experiments import PROGRAM, PROGRAM_SEARCH
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.tuning.stopper import StopperName, StopRule

P = TypeVar("P", bound="ProgramExperiment")


class ProgramExperiment(ProgramConfig, Runnable):
    """Settings of a program, and how its run begins."""

    resume: bool = False
    """Continue the run of that name; an ended one prints its record."""
    overwrite: bool = False
    """Delete the run of that name first."""
    trust_source: bool = False
    """Run the command that a run's folder names, even if no command on this machine has used it. Only for runs you
    trust: it is shown first."""

    @property
    def subject(self) -> str:
        """The program's name."""
        template = self.template
        return (template.script or Path(template.words[0])).stem

    def check_start(self) -> None:
        """Raise ConfigError without a command, or for a file that cannot be read."""
        _ = self.identity

    def check_ended(self, record: RunRecord) -> None:
        """Raise ConfigError if the script or a file has changed since the run ended."""
        self._check_unchanged(record)

    def keep_sources(self: P, run: Path, *, trusted: bool) -> P:
        """Return the settings. Raises ConfigError for a command that may not run, and for files that have changed."""
        admission.admit_command(run, self.command, trusted=trusted)
        if begun := Run(run).start_record():
            self._check_unchanged(begun)
        return self

    def _check_unchanged(self, record: RunRecord) -> None:
        if record.fingerprint != self.fingerprint:
            names = ", ".join(map(str, filter(None, (self.template.script, *self.file)))) or self.command
            raise ConfigError(
                f"run {record.name!r} began with other content of {names}: put it back, or choose another --name"
            )


class ProgramTrainSettings(ProgramExperiment):
    """Run one program of your own, in one process or on N workers of Ray with the environment that torchrun sets."""

    experiment: ClassVar[str] = PROGRAM

    def check_start(self) -> None:
        """Raise ConfigError for a place in the command that has no value."""
        super().check_start()
        self.template.check(())


class ProgramSearchSettings(ProgramExperiment):
    """Find the best values for a program of your own, by the metric that it prints."""

    experiment: ClassVar[str] = PROGRAM_SEARCH
    space: str = ""
    """YAML file: a line for each {NAME} of the command, with a value, a list or {low, high, log}."""
    maximize: bool = False
    """The highest value of the metric is the best, not the lowest."""
    mode: Literal["auto", "sequential", "parallel", "ray"] = "auto"
    """sequential: one program after another; parallel: --at-once of them on this machine; ray: as many as a Ray cluster
    holds; auto: ray if RAY_ADDRESS names a cluster, else sequential."""
    at_once: int = Field(2, ge=1)
    """Programs at once with --mode parallel."""
    trial_cpus: int = Field(1, ge=1)
    """CPUs of a program on Ray, and its OMP_NUM_THREADS where several run at once."""
    trial_gpus: int | None = Field(None, ge=0)
    """GPUs of a program on Ray. Default: 1 if the cluster has some, else 0."""
    method: str = "auto"
    """How to choose values: grid | random | qmc | tpe | gp | cmaes | auto (all of a grid, TPE if the space
    has ranges)."""
    stop: Literal["none", StopperName] = "none"
    """Stop weak programs at rungs, as results come: asha: below the best 1/N of those that came there before; median:
    below their median."""
    stop_reduction: int = Field(StopRule.reduction, ge=2)
    """N: of asha, and the ratio of one rung to the next."""
    stop_first: int = Field(1, ge=1)
    """The epoch of the first rung: as the lines say, else the number of lines with the metric."""
    trials: int | None = Field(None, gt=0)
    """Programs to run. Default: all of a grid, 60 otherwise."""
    search_seed: int = Field(0, ge=0)
    """Seed of the method; that of the program is an argument of its own."""

    @field_validator("method")
    @classmethod
    def _is_a_method(cls, method: str) -> str:
        from sp500.tuning.suggest import METHODS

        if method not in {"auto", *METHODS}:
            raise ValueError(f"invalid method {method!r}: expected auto, {', '.join(METHODS)}")
        return method

    @property
    def stop_rule(self) -> StopRule | None:
        """The rule that stops programs; None without one."""
        return None if self.stop == "none" else StopRule(self.stop, self.stop_first, self.stop_reduction)

    @property
    def arm(self) -> str:
        """The mode; of auto what it means here."""
        if self.mode != "auto":
            return self.mode
        address = ray_address.read()
        return "ray" if address and not ray_address.is_dashboard(address) else "sequential"

    @property
    def joins_cluster(self) -> bool:
        """True in mode ray."""
        return self.arm == "ray"

    def check_start(self) -> None:
        """Raise ConfigError for a space, a method or a command that cannot be searched."""
        if self.num_workers:
            raise ConfigError(
                f"num_workers = {self.num_workers}: a search runs each program as one process; leave it out"
            )
        super().check_start()
        from sp500.studies import program_search

        program_search.plan(self)

    def check_ended(self, record: RunRecord) -> None:
        """Raise ConfigError if the script, a file or the space has changed since the run ended."""
        super().check_ended(record)
        from sp500.studies import program_search, searched

        searched.check_unchanged(record, self.space, lambda: program_search.plan(self))
