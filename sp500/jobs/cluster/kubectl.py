"""Run kubectl with lists of arguments, never through a shell. Its error messages become exceptions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sp500.errors import ConfigError, ResourcesError, Unreachable, undo_on_error
from sp500.jobs.manifests.manifest import Document

NO_ANSWER = re.compile(
    r"connection to the server \S+ was refused|Unable to connect to the server|TLS handshake timeout|i/o timeout"
    r"|connection reset by peer|net/http: request canceled|the server is currently unable to handle the request"
)

LOGGED = re.compile(r"^[EWI]\d{4} .*\n?", re.MULTILINE)
"""kubectl's own log, which repeats its message five times."""
HINT = "Check the context, and that `kubectl version` reaches the server"


@dataclass(frozen=True)
class Kubectl:
    """One namespace of one cluster, reached with the user's own kubeconfig."""

    namespace: str
    context: str | None = None
    """A context of the kubeconfig; None is the current one."""

    def argv(self, *words: str) -> list[str]:
        """Return the command line."""
        context = [f"--context={self.context}"] if self.context else []
        return ["kubectl", *context, f"--namespace={self.namespace}", *words]

    def text(self, *words: str, stdin: str = "") -> str:
        """Return the output of a command. Raises ResourcesError with kubectl's message if it fails.

        That is Unreachable if the API server does not answer, as while it restarts.
        """
        try:
            done = subprocess.run(  # noqa: S603 - a list of words
                self.argv(*words),
                input=stdin,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
            )
        except FileNotFoundError as error:
            raise _missing() from error
        if done.returncode:
            why = _message(done.stderr) or f"exit code {done.returncode}"
            if why == "error: EOF":  # it asked for a user name
                raise ResourcesError(f"kubectl {words[0]}: the context has no credentials: log in, or choose --context")
            if NO_ANSWER.search(why):
                raise Unreachable(f"kubectl {words[0]}: {why}. {HINT}")
            raise ResourcesError(f"kubectl {words[0]}: {why}")
        return done.stdout

    def reach(self) -> None:
        """Check that the server answers.

        Raises Unreachable within seconds, while other commands try for a minute. Raises ConfigError if $KUBECONFIG
        names no existing file, since kubectl would then ask this machine.
        """
        paths = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
        if paths and not any(path.exists() for path in paths):
            raise ConfigError(f"KUBECONFIG names {paths[0]}, which is not there")
        try:
            self.text("get", "--raw=/version", "--request-timeout=5s")
        except Unreachable:
            raise
        except ResourcesError:  # it answers that this login may not ask
            return

    def execute(self, pod: str, *argv: str) -> str:
        """Return the output of a command inside a pod. Raises ResourcesError if it fails or the pod is gone."""
        return self.text("exec", pod, "--", *argv)

    def document(self, *words: str) -> Document:
        """Return what a command prints with `--output json`; empty if it prints nothing."""
        answer = self.text(*words, "--output=json", "--ignore-not-found")
        content: Document = json.loads(answer) if answer.strip() else {}
        return content

    def items(self, *words: str) -> list[Document]:
        """Return the members of the list that a command prints."""
        members: list[Document] = self.document(*words).get("items", [])
        return members

    def lacks_namespace(self) -> bool:
        """Return whether the namespace is known to be missing. False if the account may not ask."""
        try:
            return not self.document("get", "namespace", self.namespace)
        except Unreachable:
            raise
        except ResourcesError:
            return False

    @contextmanager
    def reading(self, *words: str) -> Iterator[IO[bytes]]:
        """Yield the output of a command as it comes. Raises ResourcesError at the end if the command failed."""
        with self._start(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield process.stdout

    @contextmanager
    def writing(self, *words: str) -> Iterator[IO[bytes]]:
        """Yield the input of a command. Raises ResourcesError if the command failed or stopped reading."""
        with self._start(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            yield process.stdin

    @contextmanager
    def _start(self, words: tuple[str, ...], stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
        with tempfile.TemporaryFile() as complaints:
            try:
                process = subprocess.Popen(self.argv(*words), stdin=stdin, stdout=stdout, stderr=complaints)  # noqa: S603
            except FileNotFoundError as error:
                raise _missing() from error
            broken = False
            try:
                with undo_on_error(process.kill):
                    try:
                        yield process
                        if process.stdin:
                            process.stdin.close()
                    except BrokenPipeError:
                        broken = True
            finally:
                for pipe in filter(None, (process.stdin, process.stdout)):
                    with suppress(BrokenPipeError):
                        pipe.close()
                process.wait()
            complaints.seek(0)
            why = _message(complaints.read().decode(errors="replace"))
            if process.returncode or broken:
                raise ResourcesError(f"kubectl {words[0]}: {why or 'the connection broke'}")


def _message(stderr: str) -> str:
    """Return kubectl's message without its log lines, or the log lines if there is nothing else."""
    return LOGGED.sub("", stderr).strip() or stderr.strip()


def _missing() -> ConfigError:
    return ConfigError("kubectl is not on PATH; it comes with every Kubernetes distribution")
