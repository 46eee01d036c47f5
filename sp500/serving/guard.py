"""Middleware in front of the application: the key, the size of a body, who waits, the id of a request, and counts."""

from __future__ import annotations

import hmac
import time
import uuid
from pathlib import Path
from typing import Any

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sp500.serving.connections import count_allowed

MOST_BYTES = 2**20
"""Largest body of a request."""
MOST_WAITING = min(64, count_allowed() // 4)
"""Requests that wait for the model, and those without a body that wait for something. More get status 429, so that
there is always a connection that can be ended for a new one.
"""
UNPACKED = 2
"""Requests that are objects at once: one is computed, and another prepared. A mebibyte of JSON takes 60 of memory, so
those that wait are bytes.
"""
GUARDED = ("/v1/", "/metrics")
"""Paths that need the key, if there is one."""
HEALTH = "/healthz"
"""Path that is answered however many wait."""
KEY_SECONDS = 2.0
"""Between two reads of the key's file."""
REQUEST_ID = "x-request-id"
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"frame-ancestors 'none'")]
"""Of every answer. A page may have a policy of its own as well: a browser keeps to both."""


def failure(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """Return the response to a request that failed: `error` in words, and `more`."""
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
        """Return whether a request with this header may pass. Needs the same time for every wrong key."""
        if self._file and time.monotonic() - self._read >= KEY_SECONDS:
            self._read = time.monotonic()
            self._text = read_key(self._file)
        scheme, _, given = authorization.partition(b" ")
        fits = hmac.compare_digest(given, self._text.encode()) and scheme.lower() == b"bearer"
        return not self.is_needed or (fits and bool(self._text))


def read_key(file: Path) -> str:
    """Return what the file holds; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Turns:
    """Requests that are not answered yet: those with a body, from the moment that it is read, and those without."""

    def __init__(self) -> None:
        self.taken, self.without_body = 0, 0
        self.unpacked = anyio.CapacityLimiter(UNPACKED)

    @property
    def waiting(self) -> int:
        """Those with a body but for the one that is computed."""
        return max(self.taken - 1, 0)


class Guard:
    """Middleware: checks the key and the body's size, lets few bodies be unpacked, gives each request an id, counts."""

    def __init__(
        self, app: ASGIApp, key: Key, gauges: Gauges, turns: Turns, paths: set[str], *, tells_id: bool
    ) -> None:
        self._app, self._key, self._gauges, self._turns = app, key, gauges, turns
        self._paths, self._tells_id = paths, tells_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # FastAPI answers only GET; the server, whose scope stays, leaves the body out
            scope = {**scope, "method": "GET"}
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(REQUEST_ID.encode(), b"").decode("latin-1")[:128] or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        begun, status, seconds = time.perf_counter(), 500, None
        added = [*HEADERS, *([(REQUEST_ID.encode(), request_id.encode("latin-1"))] if self._tells_id else [])]

        async def send_with_headers(message: Message) -> None:
            """Send the message with what every answer has."""
            nonlocal status, seconds
            if message["type"] == "http.response.body" and not message.get("more_body"):
                seconds = time.perf_counter() - begun  # without the shadow's work, which follows
            if message["type"] == "http.response.start":
                status, message["headers"] = message["status"], [*message["headers"], *added]
            await send(message)

        try:
            await (self._check(scope, headers) or self._take_turn)(scope, receive, send_with_headers)
        finally:
            self._count(scope["path"], status, seconds or time.perf_counter() - begun)

    def _count(self, asked: str, status: int, seconds: float) -> None:
        path = asked if asked in self._paths else "other"  # callers must not be able to add labels
        self._gauges.requests.labels(path, status).inc()
        self._gauges.seconds.labels(path).observe(seconds)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """Return the response to a refused request, without reading its body; or the application that needs no turn."""
        path, turns = scope["path"], self._turns
        if path.startswith(GUARDED) and not self._key.fits(headers.get(b"authorization", b"")):
            return failure(401, "Authorization: Bearer KEY is missing or wrong", {"www-authenticate": "Bearer"})
        if path == HEALTH:
            return self._app
        if max(turns.waiting, turns.without_body) >= MOST_WAITING:
            return failure(429, f"{MOST_WAITING} requests wait already; come again", {"retry-after": "1"})
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > MOST_BYTES:
            return _too_large()
        return _refuse_media(headers) if scope["method"] == "POST" and path in self._paths else None

    async def _take_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            self._turns.without_body += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._turns.without_body -= 1
            return
        self._turns.taken += 1
        try:
            body = await _read(receive)
            if len(body) > MOST_BYTES:
                await _too_large()(scope, receive, send)
                return
            parts = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def whole() -> Message:
                """Return the body at once, and then what comes after it."""
                return next(parts, None) or await receive()

            async with self._turns.unpacked:
                await self._app(scope, whole, send)
        finally:
            self._turns.taken -= 1


async def _read(receive: Receive) -> bytes:
    """Return the body, or more than MOST_BYTES of it."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _too_large() -> Response:
    return failure(413, f"the body has more than {MOST_BYTES} bytes")


def _refuse_media(headers: dict[bytes, bytes]) -> Response | None:
    """Refuse a body whose header is not plain JSON: the model's fields would be reported as missing."""
    coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() != "identity":
        return failure(415, f"Content-Encoding is {coding[:64]}; send the body as it is, without this header")
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind.startswith("application/") and kind.endswith(("/json", "+json")):
        return None
    expected = "expected application/json. With curl: -H 'content-type: application/json'"
    return failure(415, f"Content-Type is {kind[:64] or 'missing'}; {expected}")
