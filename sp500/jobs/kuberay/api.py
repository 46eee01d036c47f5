"""The API server, for one namespace: plain documents in and out, few retries, and an end to every wait.

The `kubernetes` package brings kubeconfig, credentials and the connection. Its models stay out: a document is what the
server sent. Its own retries are off, since they wait for as long as a server's Retry-After says; ours ask again for
what may pass (no connection, a timeout, 429, 5xx), for about LIMIT seconds, and then raise Unreachable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sp500.errors import Refused, ResourcesError, Unreachable, extra
from sp500.jobs.kuberay import responses
from sp500.jobs.kuberay.responses import Response
from sp500.jobs.manifests.manifest import Document, items, section

with extra("cluster"):
    from tenacity import (
        RetryCallState,
        Retrying,
        retry_if_result,
        stop_after_attempt,
        stop_before_delay,
        wait_random_exponential,
    )

# Tries, and seconds after which none begins; seconds that one may take to connect, and between two packets.
TRIES, LIMIT, CONNECT, READ = 6, 10.0, 3.0, 5.0
PAGE = 500
LOG_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Resource:
    """A kind of object, by its place under the server's address."""

    root: str
    plural: str


RAYJOBS = Resource("apis/ray.io/v1", "rayjobs")
CONFIG_MAPS = Resource("api/v1", "configmaps")
PODS = Resource("api/v1", "pods")
JOBS = Resource("apis/batch/v1", "jobs")
CLAIMS = Resource("api/v1", "persistentvolumeclaims")
EVENTS = Resource("api/v1", "events")
WORKLOADS = Resource("apis/kueue.x-k8s.io/v1beta2", "workloads")


@dataclass(frozen=True)
class KubeApi:
    """One namespace of one cluster.

    Reading raises Unreachable, whatever keeps an answer away: a right, a login, a server. Creating raises Refused for
    a no that another try would not change.
    """

    namespace: str
    context: str | None = None
    """A context of the kubeconfig; None is the current one."""
    kubeconfig: str | None = None
    """Path of the kubeconfig; None is $KUBECONFIG or ~/.kube/config, and inside a pod its own account."""
    pause: Callable[[float], None] = field(default=time.sleep, repr=False)
    timeout: float = READ
    """Seconds that a server may be silent."""

    @cached_property
    def client(self) -> Any:
        """The package's client. Raises Unreachable if there are no credentials to make one with."""
        return _client_of(self.context, self.kubeconfig)

    def get(self, resource: Resource, name: str, *, may_be_denied: bool = False) -> Document | None:
        """Return the object of that name, or None; an empty one that this user may not read, if it `may_be_denied`."""
        path = self._path(resource, name)
        answer = self._ask("GET", path)
        if answer.code == 404 and answer.names_an_object:
            return None
        if may_be_denied and answer.code != 200:
            return {}
        return answer.document_or(self._refusal("GET", path, answer))

    def items(self, resource: Resource, *, labels: str = "", fields: str = "") -> list[Document]:
        """Return the objects that the selectors choose, page by page; in one request if the pages expired meanwhile."""
        path, objects, token = self._path(resource), list[Document](), ""
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            answer = self._ask("GET", path, query | {"continue": token})
            if answer.code == 410 and token:
                objects, token, query = [], "", query | {"limit": ""}
                continue
            page = answer.document_or(self._refusal("GET", path, answer))
            objects += items(page.get("items"))
            token = str(section(page, "metadata").get("continue") or "")
            if not token:
                return objects

    def items_if_any(self, resource: Resource, *, labels: str) -> list[Document]:
        """Return the first page of `items`; empty if the server has no such kind, or this user may not read it."""
        answer = self._ask("GET", self._path(resource), {"labelSelector": labels})
        return items(answer.document.get("items")) if answer.code == 200 else []

    def create(self, resource: Resource, body: Document, *, dry_run: bool = False) -> Document | None:
        """Create an object and return it as the server keeps it; None if the name exists. Raises Refused.

        `dry_run`: the server checks it as if it were created, and keeps nothing.
        """
        path = self._path(resource)
        answer = self._ask("POST", path, {"fieldValidation": "Strict", "dryRun": "All" if dry_run else ""}, body)
        if answer.code == 409 and answer.reason == "AlreadyExists":
            return None
        error = self._refusal("POST", path, answer)
        # An expired login has been renewed, and the next try passes.
        return answer.document_or(error if answer.code == 401 else Refused(str(error)))

    def annotate(self, resource: Resource, name: str, uid: str, annotations: dict[str, str]) -> None:
        """Set annotations of this very object, by a merge patch. Nothing if it is gone, or another has its name."""
        path = self._path(resource, name)
        answer = self._ask("PATCH", path, body={"metadata": {"uid": uid, "annotations": annotations}})
        # Kubernetes 1.36 calls the uid of another object of the kind RayJob an invalid one (422), and no conflict.
        causes = items(section(answer.document, "details").get("causes"))
        another = answer.code == 422 and {cause.get("field") for cause in causes} == {"metadata.uid"}
        if answer.code not in {404, 409} and not another:
            answer.document_or(self._refusal("PATCH", path, answer))

    def delete(self, resource: Resource, name: str, uid: str) -> None:
        """Delete this very object, after what belongs to it. Nothing if it is gone, or another has its name."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        path = self._path(resource, name)
        answer = self._ask("DELETE", path, body=body)
        if answer.code not in {404, 409}:
            answer.document_or(self._refusal("DELETE", path, answer))

    def log(self, pod: str, container: str, *, since: str | None, tail: int | None, patient: bool) -> bytes | None:
        """Return what a container printed since a time (RFC 3339), or its last lines; None if it has no log yet.

        Each line begins with its time. At most LOG_BYTES are read, of a tail its end; the kubelet keeps 10 MiB unless
        it is configured otherwise.
        `patient`: try again if its node does not answer.
        """
        path = f"{self._path(PODS, pod)}/log"
        query = {"container": container, "timestamps": "true", "sinceTime": since or ""}
        query |= {"limitBytes": str(LOG_BYTES), "tailLines": "" if tail is None else str(tail)}
        answer = self._ask("GET", path, query, tries=TRIES if patient else 1)
        if answer.code in {204, 400, 404}:  # the pod has no node; its container waits to start; it is gone
            return None
        if answer.code != 200:
            raise self._refusal("GET", path, answer)
        if tail and tail > 1 and len(answer.body) >= LOG_BYTES:  # the limit cuts the end off
            return self.log(pod, container, since=since, tail=tail // 4 or 1, patient=patient)
        return answer.body

    def kinds(self, root: str) -> set[str] | None:
        """Return the kinds that the server has under `apis/GROUP/VERSION`, asked once; None if it has no such group."""
        answer = self._ask("GET", f"/{root}", tries=1)
        if answer.code == 404:
            return None
        return {
            str(kind.get("name"))
            for kind in items(answer.document_or(self._refusal("GET", f"/{root}", answer)).get("resources"))
        }

    def send_once(self, method: str, path: str, query: dict[str, str], body: Document | None) -> Response:
        """Send a request once and return the response; its code is 0 if there is none."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        parameters = [(key, value) for key, value in query.items() if value]
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*"} | ({"Content-Type": content} if body else {})
        serialized = self.client.param_serialize(
            method, path, query_params=parameters, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response = self.client.call_api(*serialized, _request_timeout=(CONNECT, self.timeout))
            return Response(response.status, response.read(), response.headers.get("Retry-After"))
        except (HTTPError, ApiException, OSError) as error:
            return responses.no_response(error)

    def _path(self, resource: Resource, name: str = "") -> str:
        return f"/{resource.root}/namespaces/{self.namespace}/{resource.plural}{f'/{name}' if name else ''}"

    def _refusal(self, method: str, path: str, answer: Response) -> ResourcesError:
        return responses.explain_refusal(method, path, answer, self.client.configuration.host)

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Document | None = None,
        tries: int = TRIES,
    ) -> Response:
        """Send a request until a try gets a response, and return it."""
        retrying = Retrying(
            retry=retry_if_result(lambda answer: answer.passing),
            stop=stop_after_attempt(tries) | stop_before_delay(LIMIT),
            wait=_seconds_until_the_next,
            sleep=self.pause,
            retry_error_callback=_last_response,
        )
        answer: Response = retrying(self.send_once, method, path, query or {}, body)
        if answer.passing:
            raise responses.unreachable(self.client.configuration.host, answer)
        return answer


def _seconds_until_the_next(tries: RetryCallState) -> float:
    """Return the wait that the server asks for, or else a random back-off."""
    seconds = _last_response(tries).wait
    return wait_random_exponential(multiplier=0.25, max=4)(tries) if seconds is None else seconds


def _last_response(tries: RetryCallState) -> Response:
    assert tries.outcome is not None
    answer: Response = tries.outcome.result()
    return answer


def _client_of(context: str | None, kubeconfig: str | None) -> Any:
    """Return an ApiClient that never retries. Raises Unreachable if the kubeconfig is missing or damaged."""
    with extra("cluster"):
        from kubernetes import client, config
        from kubernetes.config import ConfigException
    from yaml import YAMLError

    settings = client.Configuration()
    settings.retries = False
    where = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        if not _kubeconfigs(where):
            try:
                config.load_incluster_config(settings)
            except ConfigException:
                raise Unreachable(f"no kubeconfig at {where}, and this is not a pod with a service account") from None
            return client.ApiClient(settings)
        return config.new_client_from_config(kubeconfig, context, client_configuration=settings)
    except (ConfigException, YAMLError, OSError, TypeError) as error:  # the last: of a file that is not a mapping
        raise Unreachable(
            f"cannot reach a cluster with kubeconfig {where}{f', context {context}' if context else ''}: {error};"
            " `kubectl config get-contexts` lists the contexts; choose one with --context or $KUBECONFIG"
        ) from error


def _kubeconfigs(places: str) -> bool:
    """Return whether there is a kubeconfig at one of the places, separated by colons."""
    return any(Path(place).expanduser().exists() for place in places.split(":") if place)
