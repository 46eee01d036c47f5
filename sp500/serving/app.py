"""The HTTP server of a model: FastAPI around `Predictor`, without Ray.

One thread computes; the others only read and write. Whatever a body holds, the answer names its field and never is 500.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import anyio
import numpy as np
import pandas as pd
import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sp500 import __version__
from sp500.data import sessions
from sp500.errors import CheckpointError, DiskError
from sp500.serving import requests
from sp500.serving.answers import AnswerLog
from sp500.serving.models import POLL_SECONDS, OneRun, Registered, Served
from sp500.serving.predictor import Predictor
from sp500.serving.requests import BadRequest, Forecast, Outputs, Prices, Problem, WindowsBody

log = logging.getLogger(__name__)

MOST_BYTES = 2**20
"""Of a body."""
MOST_WAITING = 64
"""Requests that wait for the model; the next ones are told to come again."""
GUARDED = ("/v1/", "/metrics")
"""Paths that need the key, where there is one."""
REQUEST_ID = "x-request-id"


class Gauges:
    """What /metrics tells, of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["path", "status"]
        self.requests = Counter("sp500_requests", "Requests by path and status.", labels, registry=self.registry)
        self.seconds = Histogram("sp500_request_seconds", "Seconds to an answer.", ["path"], registry=self.registry)
        self.answers = Counter("sp500_answers", "Answers by version.", ["version", "role"], registry=self.registry)
        self.waiting = Gauge("sp500_waiting", "Requests that wait for the model.", registry=self.registry)
        self.refused = Gauge("sp500_model_refused", "1: the registry's state was refused.", registry=self.registry)


@dataclass
class Server:
    """The state of one process."""

    models: OneRun | Registered
    answers: AnswerLog | None
    gauges: Gauges
    limiter: anyio.CapacityLimiter

    async def answer(self, request: Request, compute: Callable[[Predictor], dict[str, Any]]) -> Response:
        """The answer of the model that is picked for this request."""
        request_id, choice = request.state.request_id, self.models.choice
        served = choice.pick(request_id)
        if served is None:
            detail = f"no model promoted for {self.models.name}"
            return failure(503, detail + (f" ({choice.refused})" if choice.refused else ""))
        if self.limiter.statistics().tasks_waiting >= MOST_WAITING:
            return failure(429, f"{MOST_WAITING} requests wait already; come again", {"retry-after": "1"})
        made = await self.computed(served, compute)
        self._keep(request_id, served, made)
        task = BackgroundTask(self._in_shadow, request_id, choice.shadow, compute) if choice.shadow else None
        return JSONResponse(made, background=task)

    async def computed(self, served: Served, compute: Callable[[Predictor], dict[str, Any]]) -> dict[str, Any]:
        """The answer with what gave it, computed in the one thread."""
        self.gauges.waiting.set(self.limiter.statistics().tasks_waiting)
        found = await anyio.to_thread.run_sync(compute, served.predictor, limiter=self.limiter)
        return {**found, "model": self.models.name, "run": served.run, "version": served.version}

    def _keep(self, request_id: str, served: Served, made: dict[str, Any]) -> None:
        self.gauges.answers.labels(served.version, served.role).inc()
        if self.answers and "forecast" in made:
            naive = {f"naive_{name}": value for name, value in made["naive"].items()}
            row = {name: made[name] for name in ("ticker", "as_of", "session", "forecast", "unit", "run", "version")}
            self.answers.add({"request_id": request_id, "role": served.role, **row, **naive})

    async def _in_shadow(self, request_id: str, served: Served, compute: Callable[[Predictor], dict[str, Any]]) -> None:
        """After the answer was sent; nobody waits for it, and nobody is told of its failure but the log."""
        try:
            self._keep(request_id, served, await self.computed(served, compute))
        except Exception as error:  # noqa: BLE001 - a candidate's fault is the candidate's
            log.warning("shadow %s: %s", served.run, error)

    async def follow(self) -> None:
        """Look at the registry and write the answers, for as long as the server runs."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """One look. A disk that is full must not end the answers."""
        self.models.refresh()
        self.gauges.refused.set(bool(self.models.choice.refused))
        try:
            if self.answers:
                self.answers.flush()
        except DiskError as error:
            log.warning("answers are not logged: %s", error)


def create(models: OneRun | Registered, *, key: str = "", answers: AnswerLog | None = None) -> ASGIApp:
    """The application. `key`: what requests to /v1 and /metrics have to bring as `Authorization: Bearer KEY`."""
    torch.set_num_threads(1)
    sessions.between(pd.Timestamp(1990, 1, 1), pd.Timestamp.now())  # the calendar, before a request waits for it
    server = Server(models, answers, Gauges(), anyio.CapacityLimiter(1))

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        """Follow the registry while requests are taken."""
        follower = asyncio.create_task(server.follow())
        yield
        follower.cancel()
        await asyncio.to_thread(server.refresh)

    app = FastAPIOffline(title=f"sp500: {models.name}", version=__version__, lifespan=running, redoc_url=None)
    _add_errors(app)
    _add_state(app, server)
    _add_answers(app, server)
    return Guard(app, key, server.gauges, {str(getattr(route, "path", "")) for route in app.routes})


def _add_answers(app: FastAPI, server: Server) -> None:
    @app.post("/v1/forecast", response_model=Forecast, responses=_ERRORS)
    async def forecast(body: Prices, request: Request) -> Response:
        """What the model expects of the next session(s) after the last price."""
        return await server.answer(request, lambda predictor: _plain(requests.forecast(predictor, body)))

    @app.post("/v1/windows", response_model=Outputs, responses=_ERRORS)
    async def windows(body: WindowsBody, request: Request) -> Response:
        """The model's outputs for windows that are encoded and scaled already."""

        def compute(predictor: Predictor) -> dict[str, Any]:
            """In the model's thread."""
            outputs = predictor.outputs(body.windows(predictor))
            if not np.isfinite(outputs).all():
                raise BadRequest(Problem(field="x", message="leads to an output that is not finite"))
            return {"outputs": outputs.tolist()}

        return await server.answer(request, compute)


def _add_state(app: FastAPI, server: Server) -> None:
    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> Response:
        """Whether the model gives the stored answer to the stored test window, on the way that requests take."""
        champion = server.models.choice.champion
        if champion is None:
            return JSONResponse({"status": "ok", "detail": "no model promoted"})
        try:
            await anyio.to_thread.run_sync(champion.predictor.check, limiter=server.limiter)
        except CheckpointError as error:
            return failure(503, str(error))
        return JSONResponse({"status": "ok", "run": champion.run, "version": champion.version})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """What answers, what it takes, and why the last promotion was refused, if it was."""
        choice = server.models.choice
        told = {name: _told(getattr(choice, name)) for name in ("champion", "canary", "shadow")}
        return {"model": server.models.name, **told, "canary_share": choice.share, "refused": choice.refused}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts and times of this process, for Prometheus."""
        return Response(generate_latest(server.gauges.registry), media_type=CONTENT_TYPE_LATEST)


def _told(served: Served | None) -> dict[str, Any] | None:
    if served is None:
        return None
    recipe = served.predictor.recipe
    return {
        "run": served.run,
        "version": served.version,
        "task": served.predictor.config.task,
        "window": recipe.window,
        "row": recipe.row,
        "outputs": recipe.outputs,
        "features": recipe.state.get("features"),
        "horizon": recipe.state.get("horizon"),
        "weights_sha256": recipe.weights_sha256,
    }


def _plain(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "as_of": str(made["as_of"]), "session": str(made["session"])}


_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The key is missing or wrong."},
    413: {"description": f"The body has more than {MOST_BYTES} bytes."},
    422: {"description": "Fields that are wrong, each with rule and date where it has one."},
    429: {"description": "Too many requests wait; come again after Retry-After seconds."},
    503: {"description": "No model was promoted."},
}


def failure(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """An answer that is none."""
    return JSONResponse({"error": detail, **more}, status, headers)


def _add_errors(app: FastAPI) -> None:
    # The handlers of FastAPI repeat the input, in which a NaN cannot be written as JSON, and that ends in status 500.
    async def invalid(_: Request, error: Exception) -> Response:
        """A body that does not fit the schema."""
        assert isinstance(error, RequestValidationError)
        found = [Problem(field=_field(one), message=str(one["msg"])) for one in error.errors()[:20]]
        return _problems(found)

    async def bad(_: Request, error: Exception) -> Response:
        """A body that fits the schema and no rule."""
        assert isinstance(error, BadRequest)
        return _problems(error.problems)

    async def http(_: Request, error: Exception) -> Response:
        """A path that is none, or JSON that cannot be read."""
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.BAD_REQUEST:
            return _problems([Problem(field="body", message="cannot be read as JSON")])
        return failure(error.status_code, str(error.detail))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(BadRequest, bad)
    app.add_exception_handler(HTTPException, http)


def _field(fault: dict[str, Any]) -> str:
    if fault["type"] == "json_invalid":  # its place is a character
        return "body"
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"] if part != "body"]
    return "".join(parts).lstrip(".") or "body"


def _problems(found: Any) -> JSONResponse:
    problems = [one.model_dump(exclude_defaults=True) for one in found]
    first = problems[0]
    return failure(422, f"{first['field']}: {first['message']}", problems=problems)


class Guard:
    """Before the application: the key, the size of a body, the id of a request, and the counts."""

    def __init__(self, app: ASGIApp, key: str, gauges: Gauges, paths: set[str]) -> None:
        self._app, self._key, self._gauges, self._paths = app, key.encode(), gauges, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(REQUEST_ID.encode(), b"").decode("latin-1")[:128] or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        begun, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            """Pass it on with the id."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID.encode(), request_id.encode("latin-1"))]
            await send(message)

        if refused := self._refused(scope["path"], headers):
            await refused(scope, receive, sent)
        else:
            await self._limited(scope, receive, sent)
        path = scope["path"] if scope["path"] in self._paths else "other"  # what callers make up is no label
        self._gauges.requests.labels(path, status).inc()
        self._gauges.seconds.labels(path).observe(time.perf_counter() - begun)

    def _refused(self, path: str, headers: dict[bytes, bytes]) -> Response | None:
        if self._key and path.startswith(GUARDED):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._key):
                return failure(401, "Authorization: Bearer KEY is missing or wrong", {"www-authenticate": "Bearer"})
        length = headers.get(b"content-length", b"0")
        return _too_large() if length.isdigit() and int(length) > MOST_BYTES else None

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body that does not tell its length is counted while it comes."""
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
