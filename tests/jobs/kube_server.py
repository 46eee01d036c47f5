"""The store of `kube_store` as an API server over HTTP on 127.0.0.1, and what goes wrong between it and a client."""

import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from kube_store import Document, KubeStore, Refusal


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD path?query" the pattern finds."""

    pattern: str
    times: int
    act: str = "status"
    """status: answer with it; drop: close the connection; cut: break off inside the body; lose: act, then drop;
    slow: answer nothing."""
    code: int = 503
    message: str = "the server is currently unable to handle the request"
    headers: tuple[tuple[str, str], ...] = ()


class _Handler(BaseHTTPRequestHandler):
    """One request: a fault that was asked for, or the store's answer."""

    protocol_version = "HTTP/1.1"
    server: "KubeServer"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        asked = f"{self.command} {self.path}"
        fault = self.server.fault(asked)
        if fault and fault.act in {"drop", "slow"}:
            self.close_connection = True
            if fault.act == "slow":
                self.server.closing.wait(30)
            return
        content = self.headers.get("Content-Type", "")
        if self.command == "PATCH" and content != "application/merge-patch+json":  # the only one that the store knows
            message = f"the body of the request was in an unknown format ({content})"
            self._send(415, Refusal(415, "UnsupportedMediaType", message).status)
            return
        if fault and fault.act == "status":
            self._send(fault.code, Refusal(fault.code, "", fault.message).status, fault.headers)
            return
        try:
            found = self.server.store.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
            code: int = 201 if self.command == "POST" else 200 if found is not None else 204
        except Refusal as error:
            found, code = error.status, error.code
        if fault and fault.act == "lose":
            self.close_connection = True
            return
        self._send(code, found, cut=fault is not None)

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def _send(self, code: int, found: Document | bytes | None, headers: Any = (), *, cut: bool = False) -> None:
        data = b"" if found is None else found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(found, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers:
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


class KubeServer(ThreadingHTTPServer):
    """The server on a free port, while the block runs; `requests` are those it got, METHOD path?query."""

    daemon_threads = True

    def __init__(self, store: KubeStore) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store, self.url = store, f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        self.closing = threading.Event()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "KubeServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def write_kubeconfig(self, path: Path) -> str:
        """Write a kubeconfig for it, and return its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": self.store.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def fail(self, pattern: str, times: int = 1, **how: Any) -> None:
        """Let the next requests that the pattern finds fail."""
        self._faults.append(Fault(pattern, times, **how))

    def fault(self, asked: str) -> Fault | None:
        """Note a request; the fault that is to happen to it."""
        with self._lock:
            self.requests.append(asked)
            found = next((one for one in self._faults if one.times and re.search(one.pattern, asked)), None)
            if found:
                found.times -= 1
            return found
