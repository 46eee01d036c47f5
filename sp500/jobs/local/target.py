"""This machine as a target."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sp500.jobs import command_words
from sp500.jobs.executor import Executor, Request
from sp500.jobs.local import executor
from sp500.jobs.resources import of_spec
from sp500.jobs.spec import KUBERNETES_ONLY, JobSpec
from sp500.jobs.state import Role
from sp500.jobs.target import Options, Place, Pods, Target


class LocalTarget(Target):
    """Processes of this machine, with the environment and in the folder of the shell that submits."""

    name = "local"
    seconds_between_looks = 0.0
    is_here = True
    ends_late_jobs = True
    ignored = frozenset({*KUBERNETES_ONLY, "working_dir"})

    def locate(self, spec: JobSpec, options: Options, folder: Path) -> Place:
        """Return this machine."""
        return {"on": self.name}

    def request(self, spec: JobSpec, id: str, options: Options) -> Request:
        """Return the command with this folder and environment."""
        command_words.check(spec, here=True)
        return executor.request(spec, cwd=Path.cwd(), environment=os.environ, python=sys.executable)

    def executor(self, place: Place, folder: Path) -> Executor:
        """Return the executor whose jobs lie in the queue's folder."""
        return executor.LocalExecutor(folder / "jobs")

    def start(self, request: Request, id: str, handle: str, devices: Sequence[int] | None = None) -> Request:
        """Show the command the GPUs that it was given."""
        if devices is None:
            return request
        environment = request["environment"] | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
        return request | {"environment": environment}

    def resume(self, request: Request, argv: Sequence[str]) -> Request:
        """Put --resume behind the words of the command, before the file of its settings."""
        words = request["argv"]
        end = len(words) - (2 if request["settings"] is not None else 0)
        return request | {"argv": [*words[:end], "--resume", *words[end:]]}

    def trains_on_workers(self, spec: JobSpec) -> bool:
        """Return whether there is more than one worker: a single one is the process itself, without Ray."""
        return spec.world_size > 1

    def pods(self, spec: JobSpec, request: Request) -> list[Pods]:
        """Return the one tree of processes."""
        return [Pods(Role.SUBMITTER, 1, of_spec(spec))]


LOCAL = LocalTarget()
