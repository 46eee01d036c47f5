"""Responses of the API server, and errors that say what happened, who can repair it, and how."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from sp500.errors import ResourcesError, Unreachable
from sp500.jobs.cluster.kubectl import HINT
from sp500.jobs.cluster.rollout import OPERATOR
from sp500.jobs.manifests.manifest import Document, section

ANONYMOUS = "system:anonymous"
RIGHTS = (
    "the Role sp500-jobs in cluster/base/rbac.yaml grants it: ask an administrator of the namespace to bind it to you"
)


@dataclass(frozen=True)
class Response:
    """One HTTP response, or with code 0 the words of why there was none."""

    code: int
    body: bytes
    retry_after: str | None = None

    @property
    def passing(self) -> bool:
        """True if another try may get another answer."""
        return self.code in {0, 429} or self.code >= 500

    @cached_property
    def document(self) -> Document:
        """The JSON object of the body; empty if it is none."""
        try:
            body = json.loads(self.body)
        except ValueError:  # a proxy's page, "404 page not found"
            return {}
        return body if isinstance(body, dict) else {}

    def document_or(self, error: Exception) -> Document:
        """Return the document of a success. Raises `error` for anything else."""
        if 200 <= self.code < 300 and self.document:
            return self.document
        raise error

    @property
    def reason(self) -> str:
        """The server's word for an error, such as AlreadyExists; empty if it has none."""
        return str(self.document.get("reason") or "")

    @property
    def message(self) -> str:
        """The server's sentence for an error, in one line."""
        text = self.document.get("message") or self.body.decode(errors="replace")[:300]
        return " ".join(str(text).split())

    @property
    def names_an_object(self) -> bool:
        """True if an error is about one object, not about the whole kind: a 404 means either."""
        return bool(section(self.document, "details").get("name"))

    @property
    def wait(self) -> float | None:
        """Seconds to wait before the next try."""
        seconds = self.retry_after or ""
        return float(seconds) if seconds.isdigit() else None


def no_response(error: Exception) -> Response:
    """Return the response for a connection error: its text, without the objects that urllib3 names in it."""
    reason = getattr(error, "reason", None) or next(
        (argument for argument in error.args if isinstance(argument, str)), ""
    )
    return Response(0, (str(reason).split("): ", 1)[-1] or type(error).__name__).encode())


def unreachable(host: str, answer: Response) -> Unreachable:
    """Return the error for a server at `host` that gave no usable answer."""
    if not answer.code:
        return Unreachable(f"the API server {host} does not answer ({answer.message}). {HINT}")
    return Unreachable(
        f"the API server {host} answers {answer.code} ({answer.message}). Try again; {HINT[0].lower()}{HINT[1:]}"
    )


def explain_refusal(method: str, path: str, answer: Response, host: str) -> ResourcesError:
    """Return the error for an unexpected response."""
    summary = f"{host} answers {answer.code} to {method} {path}: {answer.message}"
    if answer.code == 401 or (answer.code == 403 and ANONYMOUS in answer.message):
        return Unreachable(
            f"{summary}; your login is missing or has expired: log in again (check it with `kubectl auth whoami`)"
        )
    if answer.code == 403 and " cannot " in answer.message:  # the words of RBAC; a quota's 403 has others
        return Unreachable(f"{summary}; {RIGHTS}")
    if answer.code == 404 and "ray.io" in path and not answer.names_an_object:
        return Unreachable(
            f"{summary}; this cluster has no KubeRay operator; its administrator installs it: {OPERATOR}"
        )
    if answer.code == 404 and section(answer.document, "details").get("kind") == "namespaces":
        return Unreachable(f"{summary}; choose one with --namespace: `kubectl get namespaces` lists them")
    return Unreachable(summary)
