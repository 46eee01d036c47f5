"""Targets: the kinds of places where jobs run, found by name.

A target is one object that says how its jobs are requested, checked, counted and billed; its executor does the work.
`BUILT_IN` lists those of this package. Another package adds its own by an entry point of the group `sp500.targets`,
named as the target and pointing to the object ([how](docs/your-own-target.md)).
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from sp500.errors import ConfigError, attempt
from sp500.jobs.executor import Executor, Request
from sp500.jobs.resources import Resources, of_spec
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import Role

BUILT_IN = {
    "local": "sp500.jobs.local.target:LOCAL",
    "ray": "sp500.jobs.ray.target:RAY",
    "kuberay": "sp500.jobs.kuberay.target:KUBERAY",
}
"""Targets by name, the default first."""
GROUP = "sp500.targets"

Place = Mapping[str, Any]
"""The place of a job, as the queue keeps it: `on`, the name of its target, and how that is reached. Plain data."""


class Options(BaseModel):
    """Flags of a target, under which `submit` says how it is reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True)
class Pods:
    """Equal machines, pods or processes of a job."""

    role: Role
    count: int
    each: Resources
    """Memory 0: all that the node has."""

    @property
    def total(self) -> Resources:
        """Resources of all of them together."""
        return Resources(self.count * self.each.cpus, self.count * self.each.gpus, self.count * self.each.memory)


class Target(ABC):
    """A kind of place. The defaults are those of a cluster that others run."""

    name: str
    options: type[Options] = Options
    seconds_between_looks: float = 1.0
    """Seconds between two looks of the queue at its jobs."""
    is_here: bool = False
    """True if commands run on this machine: with its paths and programs, on its CPUs, and their log stays."""
    makes_cluster: bool = False
    """True if each start makes its own cluster, which ends with it: with its pods, their logs, and its nodes."""
    ends_late_jobs: bool = False
    """True if it enforces deadlines itself; else the queue does, as long as it has a manager."""
    ignored: frozenset[str] = frozenset()
    """Fields of a job that have no meaning there."""
    start_seconds: float = 0.0
    """Seconds of a start that a job's estimate gets on top of its command's."""

    @abstractmethod
    def locate(self, spec: JobSpec, options: Any, folder: Path) -> Place:
        """Return where this job runs. `folder`: the queue's. Raises ConfigError for options that name no place."""

    def check(self, specs: Sequence[JobSpec], options: Any, folder: Path) -> None:
        """Check that the place accepts these jobs now. Raises ResourcesError if it does not, with the way out."""
        return

    @abstractmethod
    def request(self, spec: JobSpec, id: str, options: Any) -> Request:
        """Return what its executor gets. Raises ConfigError for what the place cannot do."""

    @abstractmethod
    def executor(self, place: Place, folder: Path) -> Executor:
        """Return the executor of jobs there."""

    def start(self, request: Request, id: str, handle: str, devices: Sequence[int] | None = None) -> Request:
        """Return the request of job `id` for the start `handle`, on these GPUs of this machine (None: it has none)."""
        return request

    def resume(self, request: Request, argv: Sequence[str]) -> Request:
        """Return the request with --resume at the end of its command, which is a line of a shell."""
        command = shlex.join(argv)
        old, new = (json.dumps(line)[1:-1] for line in (command, f"{command} --resume"))
        resumed: Request = json.loads(json.dumps(request).replace(old, new))
        return resumed

    def trains_on_workers(self, spec: JobSpec) -> bool:
        """Return whether its command gets the number of workers to train on, as SP500_WORLD_SIZE."""
        return True

    def waits_elsewhere(self, spec: JobSpec) -> bool:
        """Return whether another queue decides when it starts, so that capacity here does not count."""
        return False

    def pods(self, spec: JobSpec, request: Request) -> list[Pods]:
        """Return what is billed."""
        total = of_spec(spec)
        each = Resources(total.cpus / spec.workers, spec.gpus, total.memory / spec.workers)
        return [Pods(Role.WORKER, spec.workers, each)]

    def demand(self, spec: JobSpec, request: Request) -> Resources:
        """Return what the job uses while it runs."""
        return of_spec(spec)

    def billed_since(self, claimed: float, placed: float | None, started: float | None) -> float | None:
        """Return when a start that was handed over began to cost; None if it has nothing yet."""
        return claimed

    def most_workers(self, options: Any) -> tuple[int, str] | None:
        """Return how many workers a job may have, and what says so; None if nothing does."""
        return None

    def preview(self, requests: Sequence[Request]) -> str | None:
        """Return the requests as a dry run prints them; None: as YAML."""
        return None

    def describe(self, place: Place) -> str:
        """Return where a job runs, for a reader."""
        return self.name


class _Missing(Target):
    """A target that is not installed any more, or cannot be used: its jobs are listed, and nothing else."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self._why = name, why

    def locate(self, spec: JobSpec, options: Any, folder: Path) -> Place:
        raise self._error()

    def request(self, spec: JobSpec, id: str, options: Any) -> Request:
        raise self._error()

    def executor(self, place: Place, folder: Path) -> Executor:
        raise self._error()

    def start(self, request: Request, id: str, handle: str, devices: Sequence[int] | None = None) -> Request:
        raise self._error()

    def _error(self) -> ConfigError:
        return ConfigError(f"target {self.name} {self._why}")


@cache
def _references() -> dict[str, str]:
    """Return module and name of each target's object."""
    return {point.name: point.value for point in metadata.entry_points(group=GROUP)} | BUILT_IN


def names() -> list[str]:
    """Return the names of all targets, the default first."""
    known = _references()
    return [*BUILT_IN, *sorted(known.keys() - BUILT_IN.keys())]


@cache
def find(name: str) -> Target:
    """Return the target of that name. For one that cannot be used, one whose methods raise ConfigError."""
    if (reference := _references().get(name)) is None:
        return _Missing(name, f"is not installed here; there are {', '.join(names())}")
    module, _, attribute = reference.partition(":")

    def report(error: Exception) -> Target:
        """Return a target for an error of another package, which must not end the queue of all jobs."""
        why = f"{type(error).__name__}: {error}"
        return _Missing(name, f"cannot be loaded from {reference} ({why}). Repair its package or uninstall it")

    target = attempt(lambda: getattr(import_module(module), attribute), report)
    if not isinstance(target, Target) or target.name != name:
        # Its jobs would be kept under another name, by which nothing finds it.
        return _Missing(name, f"is an entry point of {GROUP} that leads to {target!r}. Expected a Target of that name")
    return target


def executors(folder: Path) -> Callable[[Place], Executor]:
    """Return a function that makes the executor of a place, for jobs of the queue in `folder`."""
    kept: dict[str, Executor] = {}

    def make(place: Place) -> Executor:
        target = find(place["on"])
        if not target.is_here:
            return target.executor(place, folder)
        # One for all its jobs: it reaps those of its supervisors that have ended.
        if target.name not in kept:
            kept[target.name] = target.executor(place, folder)
        return kept[target.name]

    return make


if TYPE_CHECKING:
    On = str
else:
    On = Literal[tuple(names())]
