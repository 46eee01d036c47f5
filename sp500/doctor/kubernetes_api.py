"""The few questions that are put to a Kubernetes API server, with the user's own kubeconfig. Nothing is changed there.

Import it late: the `kubernetes` package takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import kubernetes.client
import kubernetes.config
import urllib3
import yaml
from kubernetes.client.exceptions import ApiException

from sp500.errors import ConfigError, Refused, ResourcesError, Unreachable
from sp500.jobs.manifests.manifest import Document

# To connect, and to wait for an answer.
SECONDS = (3.0, 5.0)
# What the client raises for a configuration: its own, and what it stumbles over in YAML of another shape.
UNUSABLE = (kubernetes.config.ConfigException, OSError, yaml.YAMLError, TypeError, KeyError, ValueError)
STRANGER = "the answer is not that of an API server"
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404


class Cluster:
    """One API server. Every question raises Unreachable, or Refused for what this user may not ask."""

    def __init__(self, source: str, context: str | None) -> None:
        """Read a kubeconfig, or what a pod is given where `source` is empty. Raises ConfigError for one of no use."""
        settings = kubernetes.client.Configuration()
        settings.retries = False  # a doctor answers soon
        try:
            if not source:
                kubernetes.config.load_incluster_config(client_configuration=settings)
                self.context = "in this pod"
            else:
                contexts, current = kubernetes.config.list_kube_config_contexts(source)
                self.context = context or current["name"]
                if self.context not in (names := [one["name"] for one in contexts]):
                    raise ConfigError(f"{source} has no context {self.context!r}, only {', '.join(names)}")
                kubernetes.config.load_kube_config(source, self.context, settings, persist_config=False)
        except UNUSABLE as error:
            raise ConfigError(f"{source or 'this pod'}: no configuration of a cluster ({error})") from error
        self.server = settings.host
        self._client = kubernetes.client.ApiClient(settings)

    def version(self) -> str:
        """Of Kubernetes."""
        found = self._asked(kubernetes.client.VersionApi(self._client).get_code)
        if "gitVersion" not in found:
            raise ResourcesError(STRANGER)
        return str(found["gitVersion"])

    def kinds(self, group: str, version: str) -> set[str]:
        """Plural names of the resources that a version of an API group serves; none for one that is not there."""
        ask = kubernetes.client.CustomObjectsApi(self._client).get_api_resources
        return {one["name"] for one in self._asked(ask, group, version).get("resources", [])}

    def deployments(self, selector: str) -> list[Document]:
        """Deployments with these labels, of all namespaces."""
        ask = kubernetes.client.AppsV1Api(self._client).list_deployment_for_all_namespaces
        found: list[Document] = self._asked(ask, label_selector=selector)["items"]
        return found

    def permits(self, namespace: str, verb: str, group: str, resource: str, name: str) -> bool:
        """Whether this user may do that; `resource` may be RESOURCE/SUBRESOURCE."""
        kind, _, part = resource.partition("/")
        attributes = kubernetes.client.V1ResourceAttributes(
            namespace=namespace, verb=verb, group=group, resource=kind, subresource=part or None, name=name or None
        )
        review = kubernetes.client.V1SelfSubjectAccessReview(
            spec=kubernetes.client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        )
        ask = kubernetes.client.AuthorizationV1Api(self._client).create_self_subject_access_review
        return bool(self._asked(ask, review)["status"]["allowed"])

    def claim(self, namespace: str, name: str) -> Document:
        """A PersistentVolumeClaim; empty where there is none."""
        return self._asked(
            kubernetes.client.CoreV1Api(self._client).read_namespaced_persistent_volume_claim, name, namespace
        )

    def service(self, namespace: str, name: str) -> Document:
        """A RayService; empty where there is none."""
        ask = kubernetes.client.CustomObjectsApi(self._client).get_namespaced_custom_object
        return self._asked(ask, "ray.io", "v1", namespace, "rayservices", name)

    def _asked(self, ask: Callable[..., Any], *words: Any, **more: Any) -> Document:
        """The answer as it came; empty where there is nothing."""
        try:
            answer = ask(*words, **more, _preload_content=False, _request_timeout=SECONDS)
            found: Document = json.loads(answer.data)
        except ApiException as error:
            if error.status == NOT_FOUND:
                return {}
            if error.status in (UNAUTHORIZED, FORBIDDEN):
                raise Refused(f"HTTP {error.status}: {_message(error)}") from error
            if not error.status:  # the client's own: a certificate that does not hold
                raise Unreachable(" ".join(str(error.reason).split())) from error
            raise ResourcesError(f"HTTP {error.status}: {_message(error)}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(_why(error)) from error
        except ValueError as error:
            raise ResourcesError(STRANGER) from error
        return found


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _why(error: urllib3.exceptions.HTTPError) -> str:
    cause = error.__cause__
    return str(getattr(cause, "strerror", None) or (cause if cause else error))
