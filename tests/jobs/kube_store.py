"""A Kubernetes API server in memory: what a client sees of a real one.

Objects have uids, resource versions and generations; lists have selectors, pages and pages that expire; deletion has
propagation and preconditions; errors are Status objects in the words of the real server. What a server does by itself
(garbage collection) happens when a test says `collect()`, never by a clock.

It is a server of our own: of what there is, kmock 0.8 has a store, but no resource versions, uids, selectors or logs.
"""

import base64
import copy
import json
import re
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

Document = dict[str, Any]

KINDS = {
    "rayjobs": ("apis/ray.io/v1", "RayJob"),
    "rayclusters": ("apis/ray.io/v1", "RayCluster"),
    "workloads": ("apis/kueue.x-k8s.io/v1beta2", "Workload"),
    "jobs": ("apis/batch/v1", "Job"),
    "configmaps": ("api/v1", "ConfigMap"),
    "pods": ("api/v1", "Pod"),
    "events": ("api/v1", "Event"),
    "persistentvolumeclaims": ("api/v1", "PersistentVolumeClaim"),
}
PATH = re.compile(r"/((?:api|apis/[^/]+)/[^/]+)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(?:/(log))?")
NOT_FOUND = "the server could not find the requested resource"


class Refusal(Exception):
    """An error answer."""

    def __init__(self, code: int, reason: str, message: str, details: Document | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": code,
        }


def stamp(moment: datetime | None = None) -> str:
    """RFC 3339 in whole seconds, as in metadata."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class KubeStore:
    """One namespace. `answer` is for the client; what else there is, for a test and its operator, who may do all."""

    def __init__(self, namespace: str = "sp500") -> None:
        self.namespace, self.token = namespace, secrets.token_hex(8)
        self.objects: dict[tuple[str, str], Document] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        """Lines of each pod that has started: time as the node writes it, text."""
        self.served = set(KINDS)
        self.claims, self.claim_mode = {"sp500-data", "sp500-runs"}, "ReadWriteMany"
        self.missing: set[str] = set()
        """Namespaces that are not there."""
        self.denied: set[tuple[str, str]] = set()
        """Verbs and kinds that the user has no right to."""
        self.used: set[tuple[str, str]] = set()
        """Those that the user has made use of."""
        self.looked: Callable[[str], None] = lambda name: None
        """Called with a RayJob's name before each GET of it: the operator's moment, in tests without steps."""
        self.schema_faults: Callable[[Document], list[str]] = lambda document: []
        self.lock = threading.RLock()
        self._version = 0

    def put(self, plural: str, body: Document) -> Document:
        """Create an object."""
        with self.lock:
            name = body["metadata"]["name"]
            if (plural, name) in self.objects:
                raise Refusal(409, "AlreadyExists", f'{plural} "{name}" already exists', {"name": name, "kind": plural})
            root, kind = KINDS[plural]
            made = {"apiVersion": root.removeprefix("api/").removeprefix("apis/"), "kind": kind} | copy.deepcopy(body)
            made["metadata"] |= {
                "namespace": self.namespace,
                "uid": secrets.token_hex(16),
                "generation": 1,
                "creationTimestamp": stamp(),
            }
            self.objects[plural, name] = made
            return self._touched(made)

    def get(self, plural: str, name: str) -> Document:
        """The object itself."""
        if found := self.objects.get((plural, name)):
            return found
        group = KINDS[plural][0].split("/")[1] if KINDS[plural][0].startswith("apis/") else ""
        full = f"{plural}.{group}" if group else plural
        raise Refusal(404, "NotFound", f'{full} "{name}" not found', {"name": name, "group": group, "kind": plural})

    def set(self, plural: str, name: str, **status: Any) -> Document:
        """Change fields of an object's status."""
        with self.lock:
            found = self.get(plural, name)
            found.setdefault("status", {}).update(status)
            return self._touched(found)

    def patch(self, plural: str, name: str, change: Document) -> Document:
        """Merge; a uid in it has to be the present one."""
        with self.lock:
            found = self.get(plural, name)
            uid = change.get("metadata", {}).get("uid", found["metadata"]["uid"])
            if uid != found["metadata"]["uid"]:
                causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
                message = f'"{name}" is invalid: metadata.uid: Invalid value: "{uid}": field is immutable'
                raise Refusal(422, "Invalid", message, {"name": name, "kind": plural, "causes": causes * 2})
            before = copy.deepcopy(found.get("spec"))
            _merge(found, change)
            found["metadata"]["generation"] += found.get("spec") != before
            return self._touched(found)

    def delete(self, plural: str, name: str, options: Document | None = None) -> Document:
        """Delete at once, or in the foreground: after what belongs to it, when collected."""
        with self.lock:
            found, options = self.get(plural, name), options or {}
            wanted = options.get("preconditions", {}).get("uid", found["metadata"]["uid"])
            if wanted != found["metadata"]["uid"]:
                message = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: other"
                raise Refusal(409, "Conflict", message, {"name": name, "kind": plural})
            if options.get("propagationPolicy") == "Foreground":
                found["metadata"].setdefault("deletionTimestamp", stamp())
                return self._touched(found)
            del self.objects[plural, name]
            return found

    def collect(self) -> None:
        """Delete what waits for it, and all whose owner is gone, as the garbage collector does."""
        with self.lock:
            for key, one in list(self.objects.items()):
                if one["metadata"].get("deletionTimestamp"):
                    del self.objects[key]
            while orphans := [key for key, one in self.objects.items() if self._orphaned(one)]:
                for key in orphans:
                    del self.objects[key]
            self.logs = {pod: lines for pod, lines in self.logs.items() if ("pods", pod) in self.objects}

    def _orphaned(self, one: Document) -> bool:
        owners = one["metadata"].get("ownerReferences", [])
        present = {other["metadata"]["uid"] for other in self.objects.values()}
        return bool(owners) and not any(owner["uid"] in present for owner in owners)

    def _touched(self, one: Document) -> Document:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(one)

    def answer(self, method: str, url: str, body: Document, token: str) -> Document | bytes | None:
        """The answer to a request. Raises Refusal."""
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if token != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if found := PATH.fullmatch(parts.path):
            root, namespace, plural, name, log = found.groups()
            if namespace in self.missing and method == "POST":
                details = {"name": namespace, "kind": "namespaces"}
                raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found', details)
            self._may(method, plural, name, log, namespace)
            if plural not in self.served or KINDS[plural][0] != root:
                raise Refusal(404, "NotFound", NOT_FOUND)
            if plural == "persistentvolumeclaims":
                return self._claim(str(name))
            with self.lock:
                return self._log(name, query) if log else self._object(method, plural, name or "", query, body)
        resources = [{"name": plural} for plural in sorted(self.served) if f"/{KINDS[plural][0]}" == parts.path]
        if not resources:
            raise Refusal(404, "NotFound", NOT_FOUND)
        return {"kind": "APIResourceList", "apiVersion": "v1", "resources": resources}

    def _may(self, method: str, plural: str, name: str | None, log: str | None, namespace: str) -> None:
        verbs = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "GET": "get" if name else "list"}
        resource = f"{plural}/log" if log else plural
        self.used.add((verbs[method], resource))
        if (verbs[method], resource) in self.denied or namespace != self.namespace:
            message = (
                f'{plural}{f" {name!r}" if name else ""} is forbidden: User "eve" cannot {verbs[method]} resource'
                f' "{resource}" in API group "{KINDS[plural][0]}" in the namespace "{namespace}"'
            )
            raise Refusal(403, "Forbidden", message, {"name": name, "kind": plural})

    def _object(self, method: str, plural: str, name: str, query: dict[str, str], body: Document) -> Document:
        if method == "POST":
            strict, dry = query.get("fieldValidation") == "Strict", query.get("dryRun") == "All"
            return self._create(plural, body, strict=strict, dry=dry)
        if method == "PATCH":
            return self.patch(plural, name, body)
        if method == "DELETE":
            return self.delete(plural, name, body)
        if not name:
            return self._list(plural, query)
        if plural == "rayjobs":
            self.looked(name)
        return copy.deepcopy(self.get(plural, name))

    def _claim(self, name: str) -> Document:
        if name not in self.claims:
            message = f'persistentvolumeclaims "{name}" not found'
            raise Refusal(404, "NotFound", message, {"name": name, "kind": "persistentvolumeclaims"})
        return {"kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {"accessModes": [self.claim_mode]}}

    def _create(self, plural: str, body: Document, *, strict: bool, dry: bool) -> Document:
        group = KINDS[plural][0].removeprefix("api/").removeprefix("apis/")
        if (body.get("apiVersion"), body.get("kind")) != (group, KINDS[plural][1]):
            raise Refusal(400, "BadRequest", f"the object provided is no {group} {KINDS[plural][1]}")
        if body["metadata"].get("namespace", self.namespace) != self.namespace:
            raise Refusal(
                400, "BadRequest", "the namespace of the provided object does not match the one of the request"
            )
        if plural == "rayjobs":
            unowned = body | {"metadata": {k: v for k, v in body["metadata"].items() if k != "ownerReferences"}}
            for fault in self.schema_faults(unowned):
                if "Additional properties" in fault and strict:
                    raise Refusal(400, "BadRequest", f"strict decoding error: unknown field: {fault}")
                raise Refusal(422, "Invalid", f'RayJob.ray.io "{body["metadata"]["name"]}" is invalid: {fault}')
        return body if dry else self.put(plural, body)

    def _list(self, plural: str, query: dict[str, str]) -> Document:
        chosen = [
            one
            for (kind, _), one in sorted(self.objects.items())
            if kind == plural
            and _chosen(query.get("labelSelector", ""), lambda key, one=one: one["metadata"].get("labels", {}).get(key))
            and _chosen(query.get("fieldSelector", ""), lambda key, one=one: _at(one, key))
        ]
        version, start = self._version, 0
        if token := query.get("continue"):
            version, start = json.loads(base64.b64decode(token))
        end = start + int(query.get("limit", len(chosen)))
        more = base64.b64encode(json.dumps([version, end]).encode()).decode() if end < len(chosen) else ""
        meta = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
        return {"kind": "List", "metadata": meta, "items": copy.deepcopy(chosen[start:end])}

    def _log(self, pod: str, query: dict[str, str]) -> bytes | None:
        """As the kubelet gives it; nothing (204) of a pod without a node, since there is no kubelet to ask."""
        found = self.get("pods", pod)
        if not any(one["type"] == "PodScheduled" and one["status"] == "True" for one in _conditions(found)):
            return None
        container = found["spec"]["containers"][0]["name"]
        if query["container"] != container:
            raise Refusal(400, "BadRequest", f"container {query['container']} is not valid for pod {pod}")
        if pod not in self.logs:
            message = f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating'
            raise Refusal(400, "BadRequest", message)
        lines = [one for one in self.logs[pod] if one[0][:19] >= query.get("sinceTime", "")[:19]]
        lines = lines[len(lines) - min(len(lines), int(query.get("tailLines", len(lines)))) :]
        stamped = query.get("timestamps") == "true"
        log = "".join(f"{time} {text}" if stamped else text for time, text in lines).encode()
        return log[: int(query.get("limitBytes", len(log)))]


def _conditions(pod: Document) -> list[Document]:
    return list(pod.get("status", {}).get("conditions", []))


def _merge(into: Document, change: Document) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


def _at(one: Any, path: str) -> Any:
    for key in path.split("."):
        one = one.get(key, {})
    return one


def _chosen(selector: str, value: Callable[[str], Any]) -> bool:
    pairs = [part.partition("=") for part in selector.split(",") if part]
    return all(value(key) == wanted for key, _, wanted in pairs)
