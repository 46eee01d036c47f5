"""The executor of a target: which one, and how it is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sp500.errors import ConfigError
from sp500.jobs.document import Document
from sp500.jobs.executor import Executor
from sp500.jobs.local.executor import LocalExecutor


def maker(folder: Path, environment: Mapping[str, str]) -> Callable[[Document], Executor]:
    """Makes executors for the jobs of the state folder `folder`. Each loads what it needs when it is first made."""
    # One for all its jobs: it buries those of its supervisors that have ended.
    here = LocalExecutor(folder / "jobs")

    def make(target: Document) -> Executor:
        """The executor of one target."""
        if target["on"] == "local":
            return here
        if target["on"] == "ray":
            from sp500.jobs.ray.executor import RayExecutor

            return RayExecutor(target["address"], token(target, environment))
        from sp500.jobs.kuberay.executor import KubeRayExecutor

        return KubeRayExecutor(target["namespace"], target["context"], target["kubeconfig"])

    return make


def token(target: Document, environment: Mapping[str, str]) -> str | None:
    """The token of a Ray cluster: of RAY_AUTH_TOKEN, or of the file that Ray reads; None where there is neither.

    It is looked up whenever it is needed, and kept nowhere. Raises ConfigError for a file that cannot be read.
    """
    if given := environment.get("RAY_AUTH_TOKEN"):
        return given
    file = Path(target.get("token_file") or Path.home() / ".ray" / "auth_token")
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: the token of Ray cannot be read ({error.strerror})") from error
