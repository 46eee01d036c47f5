"""A page on loopback that renews itself: it answers one address, and makes the page again on request.

Other users of the machine and pages in the user's browser can reach loopback. So the path is random, the Host header
has to be this server's (a name that an attacker resolves to 127.0.0.1 is refused), only GET is answered, and no part
of a request becomes a path of the disk.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
SECONDS, SHARE = 3.0, 0.2
"""Between two renewals at least, and the share of the time that making the page may take."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'"


class LiveServer(ThreadingHTTPServer):
    """Serves what `make` returns at `url`, by default on a free port."""

    daemon_threads = True

    def __init__(self, make: Callable[[], str], port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.url = f"http://{HOST}:{self.server_port}{self.path}"
        self._make, self._lock = make, threading.Lock()
        self._page, self._until, self.pause = b"", -math.inf, SECONDS

    def renew(self) -> bytes:
        """Return the page, made again unless the last one is only seconds old."""
        with self._lock:
            begun = time.monotonic()
            if begun >= self._until:
                self._page = self._make().encode()
                took = time.monotonic() - begun
                self.pause = max(SECONDS, took / SHARE)
                self._until = begun + took + self.pause / 2
            return self._page

    def is_own(self, hosts: list[str]) -> bool:
        """Return whether a request names this server and no other."""
        return hosts in ([f"{HOST}:{self.server_port}"], [f"localhost:{self.server_port}"])


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "sp500", ""
    timeout = 10.0  # of a connection without a request

    def do_GET(self) -> None:
        """Answer the one address."""
        if not self.server.is_own(self.headers.get_all("Host", [])):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif not hmac.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            page = self.server.renew()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Refresh", str(math.ceil(self.server.pause)))
            self.end_headers()
            self.wfile.write(page)

    def end_headers(self) -> None:
        """Send the headers of every answer."""
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write no line per request: the address is a secret."""
