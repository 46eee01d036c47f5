"""Jobs on a Ray cluster that runs already, through its Jobs API.

The status that is asked for is the truth; the stream of the log is a convenience, which breaks, and is taken up again.
What is submitted is the folder with the code, uploaded once per content, and a line for the shell of the head.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

from sp500.errors import ConfigError, Refused, Unreachable
from sp500.jobs import working_dir
from sp500.jobs.executor import Line, Request
from sp500.jobs.log_lines import LONGEST, LineSplitter, Tail, behind
from sp500.jobs.ray import status as ray_status
from sp500.jobs.spec import KUBERNETES_ONLY, JobSpec
from sp500.jobs.state import Role, Status

if TYPE_CHECKING:
    from sp500.jobs.ray.client import RayClient

# Linux' limit for one word of a command line, its end included; the entrypoint is one word of `sh -c`.
LONGEST_WORD = 2**17
# Ray replaces these in the value of a variable, and has no way to quote them.
REFERENCE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)
# Seconds between SIGTERM and SIGKILL: as Kubernetes, which leaves time for a last checkpoint. Ray's own are 3.
GRACE = {"RAY_JOB_STOP_WAIT_TIME_S": "30"}
TOKEN = re.compile(r"[!-~]+")
PAUSE_SECONDS = 0.5


def request(spec: JobSpec, *, cwd: Path) -> Request:
    """Return what the Jobs API gets besides the handle; the folder `cwd` (absolute) is uploaded at the submission.

    The command asks for no CPU, since it runs on the head, which may have none: what it needs it asks Ray for. The
    deadlines and retries of a job are not Ray's to keep. Raises ConfigError for what a running cluster cannot give.
    """
    _refuse(spec)
    assert cwd.is_absolute()
    resources = {"workers": spec.workers, "cpus": spec.cpus, "memory": spec.memory, "gpus": spec.gpus or None}
    return {
        "entrypoint": _entrypoint(spec),
        "runtime_env": {
            "working_dir": spec.working_dir or str(cwd),
            "excludes": list(working_dir.CREDENTIALS),
            "env_vars": {**GRACE, **spec.env},
        },
        # Ray accepts only text, and shows job_name in the dashboard.
        "metadata": {
            "job_name": spec.name,
            **{key: str(value) for key, value in resources.items() if value is not None},
        },
    }


class RayExecutor:
    """Jobs of one Ray cluster; `address` is its dashboard's, http://HOST:8265.

    `token`: what the cluster wants to see, under RAY_AUTH_MODE=token. `answer_seconds`: how long one answer may take.
    `silence_seconds`: after how long without a line a follower reopens the stream, which may have died unnoticed.
    `patience_seconds`: how long a job may take to end, and how long followers wait for a cluster that is away.
    A token that is missing or wrong is Unreachable: with the right one the cluster would answer.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        answer_seconds: float = 30,
        silence_seconds: float = 60,
        patience_seconds: float = 60,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"address {address!r}: expected that of a Ray dashboard, such as http://127.0.0.1:8265")
        if token is not None and not TOKEN.fullmatch(token):
            raise ConfigError("token: expected one word of printable ASCII characters, as in ~/.ray/auth_token")
        self._address = address.rstrip("/")
        self._token = token
        self._answer_seconds = answer_seconds
        self._silence_seconds = silence_seconds
        self._patience_seconds = patience_seconds
        self._pause = pause
        self._clock = clock

    def submit(self, handle: str, request: Request) -> None:
        """Upload the folder and start the job, unless the cluster knows the handle already.

        Raises Refused for a folder larger than Ray accepts, or one that is gone.
        """
        if self._client.job(handle) is not None:
            return
        folder = request["runtime_env"]["working_dir"]
        if "://" not in folder:
            try:
                working_dir.check(Path(folder))
            except ConfigError as error:
                raise Refused(str(error)) from error
        try:
            self._client.submit(handle, request)
        except Unreachable:
            # Ray reports a handle that another client used first as an internal error.
            if self._client.job(handle) is None:
                raise

    def status(self, handle: str) -> Status:
        """Return what Ray reports now; LOST if the cluster answers and has no such job."""
        job = self._client.job(handle)
        return ray_status.unknown_job_status(self._address, handle) if job is None else ray_status.status(job)

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Yield lines of the command. Raises ConfigError for the other roles."""
        if role not in {None, Role.SUBMITTER}:
            raise ConfigError(
                f"role {role}: Ray keeps only the command's log (submitter); for others see {self._address}/#/logs"
            )
        return (Line(Role.SUBMITTER, "", text) for text in self._lines(handle, tail, follow=follow))

    def stop(self, handle: str) -> None:
        """Have its processes sent SIGTERM, and SIGKILL after 30 seconds (RAY_JOB_STOP_WAIT_TIME_S of its env)."""
        end = self._clock() + self._patience_seconds
        # A job that was accepted a moment ago has no process yet to send a signal to.
        while not self._client.stop(handle) and not self.status(handle).state.finished:
            self._wait(end, f"job {handle} cannot be stopped yet")

    def delete(self, handle: str) -> None:
        """Stop it, wait for its end, and have Ray forget it; its log stays in a file on the head."""
        self.stop(handle)
        end = self._clock() + self._patience_seconds
        while not self.status(handle).state.finished:
            self._wait(end, f"job {handle} was asked to stop and is still running")
        self._client.remove(handle)

    @cached_property
    def _client(self) -> RayClient:
        from sp500.jobs.ray.client import RayClient

        return RayClient(
            self._address,
            self._token,
            answer_seconds=self._answer_seconds,
            silence_seconds=self._silence_seconds,
            direct=is_loopback(self._address),
        )

    def _lines(self, handle: str, tail: int | None, *, follow: bool) -> Iterator[str]:
        if (job := self._client.job(handle)) is None:
            return
        entrypoint = job["entrypoint"]
        splitter = LineSplitter(ray_status.announcement_pattern(handle, entrypoint), hold=len(entrypoint) + LONGEST)
        read, last = 0, None if tail is None else Tail(tail)
        for piece in self._client.log(handle):
            read += len(piece)
            lines = splitter.add(piece)
            if last is None:
                yield from lines
            else:
                last.add(lines)
        if last is not None and not follow:
            last.add(splitter.rest())
        yield from last or ()
        if follow:
            for piece in self._pieces(handle, read):
                yield from splitter.add(piece)
        yield from splitter.rest()

    def _pieces(self, handle: str, after: int) -> Iterator[str]:
        """Yield the log behind its first `after` characters as it grows, until the job has ended and all is read."""
        end = self._clock() + self._patience_seconds
        while True:
            try:
                ended = self.status(handle).state.finished
                for piece in behind(self._client.log(handle), after) if ended else self._client.tail(handle, after):
                    after += len(piece)
                    yield piece
                if ended:
                    return
                end = self._clock() + self._patience_seconds
            except Unreachable:
                if self._clock() > end:
                    raise
            self._pause(PAUSE_SECONDS)

    def _wait(self, end: float, what: str) -> None:
        if self._clock() > end:
            raise Unreachable(f"{self._address}: {what}, after {self._patience_seconds:g} s")
        self._pause(PAUSE_SECONDS)


def insecure(address: str, token: str | None) -> str:
    """Return the reason not to send the token to that address; empty if it is safe."""
    if token is None or urlsplit(address).scheme == "https" or is_loopback(address):
        return ""
    return (
        f"{address} is reached without TLS, so everybody on the way can read the token and run code on the cluster."
        " Forward the port (kubectl port-forward) or use https://"
    )


def is_loopback(address: str) -> bool:
    """Return whether the host of a URL is this machine."""
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _refuse(spec: JobSpec) -> None:
    for field in KUBERNETES_ONLY:
        if getattr(spec, field) != JobSpec.model_fields[field].default:
            raise ConfigError(
                f"{field}: only a cluster of the job's own has that, and this one runs already; leave it out"
            )
    if spec.secrets:
        raise ConfigError(
            f"secrets: the dashboard would show {min(spec.secrets)}; put it into the environment of the cluster's pods"
        )
    for name, value in spec.env.items():
        if match := REFERENCE.search(value):
            raise ConfigError(
                f"env: {name} has {match[0]}, which Ray would replace on the cluster; set the value itself"
            )


def _entrypoint(spec: JobSpec) -> str:
    """Return the command for sh. Its `exec` starts only programs, no builtins, and leaves no shell waiting.

    The settings are its standard input: a file without a name, which is gone with the last process that has it open.
    All is one line, since Ray writes it into the log of the job, from where it is taken out again.
    """
    line = f"exec {shlex.join(spec.command('/dev/stdin'))}"
    if spec.settings:
        text = yaml.safe_dump(spec.settings, sort_keys=False)  # printable ASCII and line ends, by YAML's escapes
        word = shlex.quote(text.replace("\\", "\\\\").replace("\n", "\\n"))
        line = f'file=$(mktemp) && printf %b {word} >"$file" && exec <"$file" && rm "$file" && {line}'
    if (size := len(line.encode())) >= LONGEST_WORD:
        raise ConfigError(
            f"{'settings' if spec.settings else 'argv'}: the command line has {size} bytes, and {LONGEST_WORD - 1} "
            "fit; put what is long into a file in the working folder"
        )
    return line
