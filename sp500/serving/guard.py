"""Middleware in front of the application: the key, the size of a body, the id of a request, and the counts."""

from __future__ import annotations

import hmac
import time
import uuid
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 2**20
"""Largest body of a request."""
GUARDED = ("/v1/", "/metrics")
"""Paths that need the key, where there is one."""
KEY_SECONDS = 2.0
"""Between two reads of the key's file."""
REQUEST_ID = "x-request-id"


def failure(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """The answer to a request that failed: `error` in words, and `more`."""
    return JSONResponse({"error": detail, **more}, status, headers)


class Gauges:
    """Metrics of one process, for /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["path", "status"]
        self.requests = Counter("sp500_requests", "Requests by path and status.", labels, registry=self.registry)
        self.seconds = Histogram("sp500_request_seconds", "Seconds to an answer.", ["path"], registry=self.registry)
        self.answers = Counter("sp500_answers", "Answers by version.", ["version", "role"], registry=self.registry)
        self.waiting = Gauge("sp500_waiting", "Requests that wait for the model.", registry=self.registry)
        self.refused = Gauge("sp500_model_refused", "1: the registry's state was refused.", registry=self.registry)


class Key:
    """The key that requests need: a text, or the content of a file, which may appear later or change.

    An empty text without a file means that none is needed. A file that is missing or empty lets no request through.
    """

    def __init__(self, text: str = "", file: Path | None = None) -> None:
        self.is_needed = bool(text or file)
        self._text, self._file, self._read = text, file, -KEY_SECONDS

    def fits(self, authorization: bytes) -> bool:
        """Whether a request with this header may pass. Takes the same time for every wrong key."""
        if self._file and time.monotonic() - self._read >= KEY_SECONDS:
            self._read = time.monotonic()
            self._text = read_key(self._file)
        fits = hmac.compare_digest(authorization, b"Bearer " + self._text.encode())
        return not self.is_needed or (fits and bool(self._text))


def read_key(file: Path) -> str:
    """What the file holds; empty where it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Guard:
    """Middleware: checks the key and the size of a body, gives each request an id, and counts."""

    def __init__(self, app: ASGIApp, key: Key, gauges: Gauges, paths: set[str], *, tells_id: bool) -> None:
        self._app, self._key, self._gauges, self._paths, self._tells_id = app, key, gauges, paths, tells_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(REQUEST_ID.encode(), b"").decode("latin-1")[:128] or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        begun, status, seconds = time.perf_counter(), 500, None

        async def send_with_id(message: Message) -> None:
            """Send the message with the request's id."""
            nonlocal status, seconds
            if message["type"] == "http.response.body" and not message.get("more_body"):
                seconds = time.perf_counter() - begun  # without the shadow's work, which follows
            if message["type"] == "http.response.start":
                status = message["status"]
            if message["type"] == "http.response.start" and self._tells_id:
                message["headers"] = [*message["headers"], (REQUEST_ID.encode(), request_id.encode("latin-1"))]
            await send(message)

        try:
            await (self._check(scope["path"], headers) or self._limit_body)(scope, receive, send_with_id)
        finally:
            self._count(scope["path"], status, seconds or time.perf_counter() - begun)

    def _count(self, asked: str, status: int, seconds: float) -> None:
        path = asked if asked in self._paths else "other"  # callers must not be able to add labels
        self._gauges.requests.labels(path, status).inc()
        self._gauges.seconds.labels(path).observe(seconds)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> Response | None:
        if path.startswith(GUARDED) and not self._key.fits(headers.get(b"authorization", b"")):
            return failure(401, "Authorization: Bearer KEY is missing or wrong", {"www-authenticate": "Bearer"})
        length = headers.get(b"content-length", b"0")
        return _too_large() if length.isdigit() and int(length) > MOST_BYTES else None

    async def _limit_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a body without a content-length while it arrives, and refuse one that is too large."""
        if b"content-length" in dict(scope["headers"]) or scope["method"] in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MOST_BYTES:
                await _too_large()(scope, receive, send)
                return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def whole() -> Message:
            """The body at once, and then what comes after it."""
            return next(parts, None) or await receive()

        await self._app(scope, whole, send)


def _too_large() -> Response:
    return failure(413, f"the body has more than {MOST_BYTES} bytes")
