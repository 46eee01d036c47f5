"""The few questions that are put to a Kubernetes API server, with the user's own kubeconfig. Nothing is changed there.

Import it late: the `kubernetes` package takes a second.
"""

from __future__ import annotations

from sp500.errors import Refused, ResourcesError, Unreachable
from sp500.jobs.kuberay import contexts
from sp500.jobs.kuberay.api import KubeApi
from sp500.jobs.manifests.manifest import Document

STRANGER = "the answer is not that of an API server"
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404


class Cluster:
    """One API server. Every question is put once, and raises Unreachable, or Refused for what this user may not ask."""

    def __init__(self, source: str, context: str | None) -> None:
        """Read a kubeconfig, or what a pod is given if `source` is empty.

        Raises ConfigError for a context that is not there, Unreachable for a kubeconfig of no use.
        """
        self.context = contexts.select_context({"KUBECONFIG": source}, context)[0] if source else "in this pod"
        self._api = KubeApi(contexts.NAMESPACE, context, source or None)
        self.server = self._api.client.configuration.host

    def version(self) -> str:
        """Return the version of Kubernetes."""
        answer = self.get("/version")
        if "gitVersion" not in answer:
            raise ResourcesError(STRANGER)
        return str(answer["gitVersion"])

    def permits(self, namespace: str, verb: str, group: str, resource: str, name: str) -> bool:
        """Return whether this user may do that; `resource` may be RESOURCE/SUBRESOURCE."""
        kind, _, part = resource.partition("/")
        fields = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
        attributes = {key: value for key, value in {**fields, "name": name}.items() if value}
        review = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self.get(path, body=review | {"spec": {"resourceAttributes": attributes}})
        return bool(answer["status"]["allowed"])

    def get(self, path: str, query: dict[str, str] | None = None, body: Document | None = None) -> Document:
        """Return the answer as it came, to POST if there is a body; empty if there is nothing."""
        answer = self._api.send_once("POST" if body else "GET", path, query or {}, body)
        if answer.code == NOT_FOUND:
            return {}
        if not answer.code:
            raise Unreachable(answer.message)
        message = f"HTTP {answer.code}: {answer.message}"
        if answer.code in (UNAUTHORIZED, FORBIDDEN):
            raise Refused(message)
        return answer.document_or(ResourcesError(STRANGER if answer.code < 300 else message))
