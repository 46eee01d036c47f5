"""A Ray cluster that is up as a target."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sp500.credentials import without_password
from sp500.errors import ConfigError
from sp500.jobs import command_words, working_dir
from sp500.jobs.executor import Executor, Request
from sp500.jobs.spec import JobSpec
from sp500.jobs.target import Options, Place, Target
from sp500.machine.disk import write_atomic
from sp500.machine.ray_token import token_path

TOKENS = "tokens"


class RayOptions(Options):
    """Options to reach a Ray cluster."""

    address: str | None = None
    """With --on ray: address of the dashboard. Default: $RAY_ADDRESS."""


class RayTarget(Target):
    """A Ray cluster, through its Jobs API."""

    name = "ray"
    options = RayOptions

    def locate(self, spec: JobSpec, options: RayOptions, folder: Path) -> Place:
        """Return the dashboard's address, and the file with its token."""
        address = _dashboard(options)
        return {"on": self.name, "address": address, "token_file": str(_token_file(address, folder))}

    def check(self, specs: Sequence[JobSpec], options: RayOptions, folder: Path) -> None:
        """Ask the cluster for an unknown job; keep the token, which the queue's manager does not see."""
        from sp500.jobs.ray import executor as ray

        place = self.locate(specs[0], options, folder)
        if token := os.environ.get("RAY_AUTH_TOKEN"):
            (folder / TOKENS).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(Path(place["token_file"]), token, mode=0o600)
        if why := ray.insecure(place["address"], read_token(Path(place["token_file"]))):
            print(f"warning: {why}", file=sys.stderr)
        self.executor(place, folder).status("nobody")

    def request(self, spec: JobSpec, id: str, options: RayOptions) -> Request:
        """Return what the Jobs API gets, with this folder if no archive is named."""
        from sp500.jobs.ray import executor as ray

        uploaded = spec.working_dir is None
        command_words.check(spec, uploaded=uploaded)
        if uploaded:
            working_dir.check(Path.cwd())
        check_upload_has(spec, Path.cwd())
        return ray.request(spec, cwd=Path.cwd())

    def executor(self, place: Place, folder: Path) -> Executor:
        """Return the executor of that cluster, with the token as it is now."""
        from sp500.jobs.ray.executor import RayExecutor

        return RayExecutor(place["address"], read_token(Path(place["token_file"])))

    def describe(self, place: Place) -> str:
        """Return its name and address."""
        return f"{self.name}, {place['address']}"


def check_upload_has(spec: JobSpec, folder: Path) -> None:
    """Raise ConfigError for a file that is not uploaded with `folder` to a Ray cluster."""
    uploaded = working_dir.files(folder) if spec.working_dir is None else {}

    def has(path: Path) -> bool:
        """Return whether the job's processes have it, if that is known."""
        if path.is_absolute():
            return command_words.is_below(path, (*command_words.CLAIMS, *command_words.SYSTEM))
        if ".." in path.parts[:1]:
            return False
        return spec.working_dir is not None or any(Path(name).is_relative_to(path) for name in uploaded)

    for word, path in command_words.find_local_paths(spec):
        if not has(path):
            raise ConfigError(
                f"{word}: this is on this machine, and is not uploaded. Copy it into this folder, where no ignore file "
                f"names it, or name it on the cluster's storage (/data/...{path.name})"
            )


def read_token(file: Path) -> str | None:
    """Return the token of a Ray cluster. None if there is no such file. Raises ConfigError if it cannot be read.

    Callers read it each time, so that a new token takes effect at once.
    """
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: the token of Ray cannot be read ({error.strerror})") from error


def _token_file(address: str, folder: Path) -> Path:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return folder / TOKENS / hashlib.sha256(address.encode()).hexdigest()[:16]
    return token_path(os.environ, Path.home())


def _dashboard(options: RayOptions) -> str:
    address = options.address or os.environ.get("RAY_ADDRESS", "")
    try:
        without_password(address)
    except ValueError:
        raise ConfigError(
            "--address (or RAY_ADDRESS) holds a password (://user:password@). Leave it out and set RAY_AUTH_TOKEN"
        ) from None
    if not re.match(r"https?://[^/]", address):
        raise ConfigError(
            f"--address {address or '(none, and no RAY_ADDRESS)'}: expected a Ray dashboard's, such as http://127.0.0.1:8265"
        )
    return address.rstrip("/")


RAY = RayTarget()
