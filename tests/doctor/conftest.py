"""Servers on this machine that answer as Ray's dashboard and as a Kubernetes API server do."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from sp500.doctor import kubernetes_cluster


class Server:
    """Answers requests by `answer(method, path, headers, body) -> (status, document)` until closed."""

    def __init__(self, answer):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answered(self):
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, document = answer(self.command, self.path, self.headers, body)
                text = document.encode() if isinstance(document, str) else json.dumps(document).encode()
                self.send_response(status)
                kind = "text/plain" if isinstance(document, str) else "application/json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                if status in (301, 302, 307):
                    self.send_header("location", document)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answered  # noqa: N815 - http.server's names

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve():
    """Starts servers, and ends them."""
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class Dashboard:
    """Ray's dashboard behind its token: 401 for none, 403 for another."""

    def __init__(self, serve, token=None, version="2.60.0"):
        self.token, self.version, self.sent = token, version, []
        self.url = serve(self.answer).url

    def answer(self, _method, path, headers, _body):
        sent = headers.get("authorization", "")
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
        self.reviewed = Counter()
        self.user = True
        self.url = serve(self.answer).url

    def answer(self, _method, path, _headers, body):
        route = urlsplit(path)
        parts = route.path.strip("/").split("/")
        if not self.user:
            return failure(401, "Unauthorized")
        if parts[-1] in self.forbidden or (len(parts) > 1 and parts[-2] in self.forbidden):
            return failure(403, f"{parts[-1]} is forbidden: User cannot list")
        match parts:
            case ["version"]:
                numbers = (
                    "major",
                    "minor",
                    "gitCommit",
                    "gitTreeState",
                    "buildDate",
                    "goVersion",
                    "compiler",
                    "platform",
                )
                return 200, {"gitVersion": "v1.36.0", **dict.fromkeys(numbers, "0")}
            case ["apis", "ray.io", "v1"] if self.kinds:
                return 200, {"resources": [{"name": name} for name in self.kinds]}
            case ["apis", "apps", "v1", "deployments"]:
                assert "kuberay-operator" in parse_qs(route.query)["labelSelector"][0]
                return 200, {"items": [self.deployment()] if self.image else []}
            case ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]:
                asked = body["spec"]["resourceAttributes"]
                resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
                right = (asked["verb"], resource, asked.get("group", ""), asked.get("name", ""))
                self.reviewed[asked["namespace"], right] += 1
                return 201, {"status": {"allowed": right not in self.denied}}
            case ["api", "v1", "namespaces", "sp500", "persistentvolumeclaims", name] if name in self.claims:
                phase, mode = self.claims[name]
                status = {"phase": phase, **({"capacity": {"storage": "5Gi"}} if phase == "Bound" else {})}
                return 200, {"spec": {"accessModes": [mode]}, "status": status}
            case ["apis", "ray.io", "v1", "namespaces", "sp500", "rayservices", "sp500-serve"] if self.service:
                return 200, self.service
        return failure(404, "not found")

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
    server = Server(lambda *_: (200, {}))
    server.close()
    return server.url
