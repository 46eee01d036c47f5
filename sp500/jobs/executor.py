"""Whoever runs jobs: this machine, a running Ray cluster, or KubeRay, behind five methods.

A job is known by its handle, a name that is used once. A request is plain data that holds all an executor needs, made
beforehand by the executor's module (`local.request`, `ray_jobs.request`, `kuberay.request`), so that a dry run prints
exactly what would be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sp500.jobs.manifests.manifest import Document
from sp500.jobs.state import Role, Status
from sp500.progress import RunProgress


@dataclass(frozen=True)
class Line:
    """One line of a log, without its end."""

    role: Role
    source: str
    """Name of its pod; empty where the role has one process."""
    text: str


@runtime_checkable
class Executor(Protocol):
    """Starts jobs and tells of them. Every method raises Unreachable where the other side does not answer."""

    def submit(self, handle: str, request: Document) -> None:
        """Start the job; once, however often it is called with this handle, and by however many processes.

        Raises Refused where another try would end the same.
        """

    def status(self, handle: str) -> Status:
        """What is seen now; LOST for an unknown handle."""

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Lines of one role or of all, oldest first: the last `tail` of each process, or all there are.

        With `follow`, until the job has ended, each line once, also over a broken connection. Raises ConfigError for a
        role whose log is not kept here.
        """

    def stop(self, handle: str) -> None:
        """Ask the job to end, and see to it; `status` tells when it has. Nothing for one that has ended."""

    def delete(self, handle: str) -> None:
        """Remove what is kept of it; one that still runs is stopped. Does nothing for an unknown handle."""


@runtime_checkable
class ProgressBoard(Protocol):
    """An executor with a place where others than this queue see how far a job is."""

    def show_progress(self, handle: str, progress: RunProgress) -> None:
        """Write it there, unless it stands there already. Nothing for an unknown handle."""
