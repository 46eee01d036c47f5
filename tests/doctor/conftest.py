"""Servers on this machine that answer as Ray's dashboard and as a Kubernetes API server do."""

import json
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from http_fakes import serving

from sp500.doctor import kubernetes_cluster


@pytest.fixture
def serve():
    """Starts servers that answer by `answer(method, path, token, body) -> (status, document)`, and ends them."""
    with ExitStack() as servers:

        def start(answer):
            def reply(request):
                body = json.loads(request.body) if request.body else None
                status, document = answer(request.method, request.path, request.authorization or "", body)
                request.reply(status, document, **({"Location": document} if status in (301, 302, 307) else {}))

            return servers.enter_context(serving(reply))

        yield start


class Dashboard:
    """Ray's dashboard behind its token: 401 for none, 403 for another."""

    def __init__(self, serve, token=None, version="2.60.0"):
        self.token, self.version, self.sent = token, version, []
        self.url = serve(self.answer).url

    def answer(self, _method, path, sent, _body):
        self.sent.append(sent)
        if self.token and not sent:
            return 401, "Unauthorized: Missing authentication token"
        if self.token and sent != f"Bearer {self.token}":
            return 403, "Forbidden: Invalid authentication token"
        if path != "/api/version":
            return 404, "404: Not Found"
        return 200, {"version": "4", "ray_version": self.version, "ray_commit": "0", "session_name": "session"}


@pytest.fixture
def dashboard(serve):
    """Starts a dashboard."""
    return lambda **given: Dashboard(serve, **given)


class Kubernetes:
    """An API server with KubeRay, two bound claims and a user with every right; change its fields to break it."""

    def __init__(self, serve):
        self.kinds = ["rayclusters", "rayclusters/status", "rayjobs", "rayservices"]
        self.image = "quay.io/kuberay/operator:v1.7.0"
        self.ready = 1
        self.forbidden = set()
        self.denied = set()
        self.incomplete = False
        self.claims = {"sp500-runs": ("Bound", "ReadWriteMany"), "sp500-data": ("Bound", "ReadWriteOnce")}
        self.service = {
            "metadata": {"generation": 1},
            "status": {
                "observedGeneration": 1,
                "numServeEndpoints": 2,
                "activeServiceStatus": {"applicationStatuses": {"sp500": {"status": "RUNNING"}}},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.user = True
        self.url = serve(self.answer).url

    def answer(self, _method, path, _token, body):
        route = urlsplit(path)
        parts = route.path.strip("/").split("/")
        if not self.user:
            return failure(401, "Unauthorized")
        if parts[-1] in self.forbidden or (len(parts) > 1 and parts[-2] in self.forbidden):
            return failure(403, f"{parts[-1]} is forbidden: User cannot list")
        match parts:
            case ["version"]:
                return 200, {"gitVersion": "v1.36.0"}
            case ["apis", "ray.io", "v1"] if self.kinds:
                return 200, {"resources": [{"name": name} for name in self.kinds]}
            case ["apis", "apps", "v1", "deployments"]:
                assert "kuberay-operator" in parse_qs(route.query)["labelSelector"][0]
                return 200, {"items": [self.deployment()] if self.image else []}
            case ["apis", "authorization.k8s.io", "v1", "selfsubjectrulesreviews"]:
                assert body["spec"] == {"namespace": "sp500"}
                return 201, {"status": {"resourceRules": list(self.rules()), "incomplete": self.incomplete}}
            case ["api", "v1", "namespaces", "sp500", "persistentvolumeclaims", name] if name in self.claims:
                phase, mode = self.claims[name]
                status = {"phase": phase, **({"capacity": {"storage": "5Gi"}} if phase == "Bound" else {})}
                return 200, {"spec": {"accessModes": [mode]}, "status": status}
            case ["apis", "ray.io", "v1", "namespaces", "sp500", "rayservices", "sp500-serve"] if self.service:
                return 200, self.service
        return failure(404, "not found")

    def rules(self):
        for verb, resource, group, name in rights() - self.denied:
            yield {
                "verbs": [verb],
                "resources": [resource],
                "apiGroups": [group],
                "resourceNames": [name] if name else [],
            }

    def deployment(self):
        pod = {"containers": [{"name": "kuberay-operator", "image": self.image}]}
        return {
            "metadata": {"name": "kuberay-operator", "namespace": "ray-system"},
            "spec": {"template": {"spec": pod}},
            "status": {"readyReplicas": self.ready} if self.ready else {},
        }

    def kubeconfig(self, path, server=None):
        entry = {"cluster": "here", "user": "me", "namespace": "sp500"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": entry}],
            "clusters": [{"name": "here", "cluster": {"server": server or self.url}}],
            "users": [{"name": "me", "user": {"token": "anything"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return str(path)


def rights():
    """What jobs need: verb, resource, group, name."""
    return {(verb, *kind) for kind, verbs in kubernetes_cluster.ROLE.items() for verb in verbs.split()}


def failure(status, message):
    return status, {"kind": "Status", "status": "Failure", "message": message, "code": status}


@pytest.fixture
def kubernetes(serve):
    """An API server where all is well."""
    return Kubernetes(serve)


@pytest.fixture
def looked(kubernetes, tmp_path):
    """The checks of that cluster by name."""

    def look(wanted=None, context=None, **given):
        config = kubernetes.kubeconfig(tmp_path / "config", **given)
        checks = kubernetes_cluster.cluster({"KUBECONFIG": config}, tmp_path, context, "sp500", wanted=wanted)
        assert [check.name for check in checks] == list(kubernetes_cluster.NAMES)
        return {check.name: check for check in checks}

    return look


@pytest.fixture
def nowhere():
    """URL of a port that nobody listens on."""
    with serving(lambda request: None) as server:
        return server.url
