"""A web server of a test, on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    """One request: to answer it, call `reply`, or write to the handler."""

    handler: BaseHTTPRequestHandler = field(repr=False)
    method: str
    path: str
    authorization: str | None
    body: bytes

    def reply(self, status: int, body: object = b"", **headers: str) -> None:
        """Answer with bytes, a text, or data as JSON."""
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.handler.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.wfile.write(data)


@dataclass
class Fake:
    """A server that runs."""

    url: str
    port: int
    requests: list[Request] = field(default_factory=list)


@contextmanager
def serving(answer: Callable[[Request], Any], port: int = 0) -> Iterator[Fake]:
    """A server while the block runs; `answer(request)` answers all methods."""
    fake = Fake("", 0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self, self.command, self.path, self.headers.get("Authorization"), body)
            fake.requests.append(request)
            answer(request)

        do_PUT = do_POST = do_GET  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        fake.port, fake.url = server.server_port, f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
