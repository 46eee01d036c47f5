"""Executors by target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sp500.errors import ConfigError
from sp500.jobs.executor import Executor
from sp500.jobs.local.executor import LocalExecutor
from sp500.jobs.manifests.manifest import Document


def maker(folder: Path) -> Callable[[Document], Executor]:
    """A function that makes the executor of a target, for jobs of the state folder `folder`. Imports on first use."""
    # One for all its jobs: it reaps those of its supervisors that have ended.
    here = LocalExecutor(folder / "jobs")

    def make(target: Document) -> Executor:
        """The executor of one target."""
        if target["on"] == "local":
            return here
        if target["on"] == "ray":
            from sp500.jobs.ray.executor import RayExecutor

            return RayExecutor(target["address"], read_token(Path(target["token_file"])))
        from sp500.jobs.kuberay.executor import KubeRayExecutor

        return KubeRayExecutor(target["namespace"], target["context"], target["kubeconfig"])

    return make


def read_token(file: Path) -> str | None:
    """The token of a Ray cluster. None if there is no such file. Raises ConfigError if it cannot be read.

    Callers read it each time, so that a new token takes effect at once.
    """
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: the token of Ray cannot be read ({error.strerror})") from error
