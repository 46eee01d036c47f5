"""The HTTP server of a model: FastAPI around `Predictor`, without Ray.

One thread computes; the others only read and write. Whatever a body holds, the answer names its field and never is 500.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import anyio
import numpy as np
import pandas as pd
import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp

from sp500.data import sessions
from sp500.errors import CheckpointError, SP500Error, attempt
from sp500.formatting import reference_name
from sp500.serving import requests
from sp500.serving.answers import AnswerLog
from sp500.serving.guard import MOST_BYTES, Gauges, Guard, Key, Turns, failure
from sp500.serving.history import History
from sp500.serving.media_requests import Classes, ImagesBody, Text, TextBody, classify, write
from sp500.serving.models import POLL_SECONDS, OneRun, Registered, Served
from sp500.serving.predictor import Predictor
from sp500.serving.requests import (
    BadRequest,
    Forecast,
    Forecasts,
    Outputs,
    Prices,
    Problem,
    WindowsBody,
    refuse,
)
from sp500.serving.scores import is_scored, score_log
from sp500.training.task import Classifying, Continuing, Forecasting
from sp500.version import __version__

log = logging.getLogger(__name__)

T = TypeVar("T")
SCORES_SECONDS = 60.0
"""Age at which the scores are counted again: each visit of the page asks for them."""


@dataclass
class Server:
    """The state of one process."""

    models: OneRun | Registered
    answers: AnswerLog | None
    gauges: Gauges
    turns: Turns
    history: History
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    downloads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)
    checked: tuple[Served, float, str] | None = None
    """The last check of the stored answer: the model, the time, and what was wrong."""
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: tuple[Served, float, list[dict[str, object]]] | None = None
    """The last scores: the champion, and until when they are valid."""

    async def answer(self, request: Request, compute: Callable[[Predictor], Mapping[str, object]]) -> Response:
        """Return the answer of the model that is picked for this request."""
        request_id, choice = request.state.request_id, self.models.choice
        served = choice.pick(request_id)
        if served is None:
            detail = f"no model promoted for {self.models.name}"
            return failure(503, detail + (f" ({choice.refused})" if choice.refused else ""))
        answer = await self.run_model(served, compute)
        task = BackgroundTask(self._run_shadow, request_id, choice.shadow, compute) if choice.shadow else None
        self._keep(request_id, served, answer)
        return JSONResponse(answer, background=task)

    async def run_model(
        self, served: Served, compute: Callable[[Predictor], Mapping[str, object]]
    ) -> dict[str, object]:
        """Return the answer with the model, run and version that gave it. Computed in the one thread."""
        answer = await anyio.to_thread.run_sync(compute, served.predictor, limiter=self.limiter)
        return {**answer, "model": self.models.name, "run": served.run, "version": served.version}

    def _keep(self, request_id: str, served: Served, answer: dict[str, Any]) -> None:
        self.gauges.answers.labels(served.version, served.role).inc()
        origin = {"request_id": request_id, "role": served.role, "run": served.run, "version": served.version}
        for part in answer.get("forecasts", [answer]):
            logged, naive = part.pop("logged", {}), part.get("naive")  # of a forecast: other answers are not logged
            if self.answers and isinstance(naive, dict):
                columns = {f"naive_{name}": value for name, value in naive.items()}
                row = {name: part[name] for name in ("ticker", "as_of", "session", "forecast", "unit")}
                self.answers.add({**origin, **row, **columns, **logged})

    async def run_download(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work`, which may download prices for minutes. One at a time, in a thread that no forecast needs."""
        return await anyio.to_thread.run_sync(partial(work, *arguments), limiter=self.downloads)

    async def check(self, served: Served) -> str:
        """Return what is wrong with the stored answer; empty: nothing. Runs once a second at most: it needs no key."""
        async with self.checking:
            if self.checked is None or self.checked[0] is not served or time.monotonic() > self.checked[1] + 1:
                try:
                    await anyio.to_thread.run_sync(served.predictor.check, limiter=self.limiter)
                    wrong = ""
                except CheckpointError as error:
                    wrong = str(error)
                    log.error("not ready: %s", wrong)
                self.checked = served, time.monotonic(), wrong
            return self.checked[2]

    async def _run_shadow(
        self, request_id: str, served: Served, compute: Callable[[Predictor], Mapping[str, object]]
    ) -> None:
        """Run the shadow after the answer was sent. A failure is logged, and no client sees it."""
        if self.turns.waiting:  # requests of clients come first
            return
        try:
            self._keep(request_id, served, await self.run_model(served, compute))
        except Exception as error:  # noqa: BLE001 - a shadow may raise anything; it is logged, and clients see no error
            log.warning("shadow %s: %s", served.run, error)

    async def scores(self) -> list[dict[str, object]]:
        """Return a row for each run that answered, at most a minute old. Empty if no answer is logged."""
        champion = self.models.choice.champion
        prices = await self.run_download(self.history.prices, champion)
        if not self.answers or not champion or not prices or not is_scored(champion.predictor.task):
            return []
        async with self.counting:
            if self.counted is None or self.counted[0] is not champion or time.monotonic() > self.counted[1]:
                rows = await asyncio.to_thread(score_log, self.answers, prices.close, champion.predictor.config)
                self.counted = champion, time.monotonic() + SCORES_SECONDS, rows
            return self.counted[2]

    async def load_prices(self) -> None:
        """Load the prices before the page asks for them."""
        try:
            await self.run_download(self.history.prices, self.models.choice.champion)
        except SP500Error as error:
            log.warning("the page has no prices: %s", error)

    async def follow(self) -> None:
        """Look at the registry and write the answers, for as long as the server runs."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.refresh)

    def refresh(self, *, last: bool = False) -> None:
        """Refresh the model once. A disk that is full must not end the answers."""
        self.models.refresh()
        self.gauges.refused.set(bool(self.models.choice.refused))
        if self.answers:
            flush = self.answers.flush if last else self.answers.flush_in_time
            attempt(flush, lambda error: log.warning("answers are not logged: %s", error))


def create(
    models: OneRun | Registered, *, key: Key | None = None, answers: AnswerLog | None = None, tells_id: bool = True
) -> ASGIApp:
    """Return the application.

    `key` is what requests to /v1 and /metrics have to bring as `Authorization: Bearer KEY`; with `tells_id` an answer
    has its request's id, which the proxy of Ray Serve adds by itself.
    """
    key = key or Key()
    torch.set_num_threads(1)
    sessions.between(pd.Timestamp(1990, 1, 1), pd.Timestamp.now())  # the calendar, before a request waits for it
    server = Server(models, answers, Gauges(), Turns(), History())

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        """Follow the registry while the server runs."""
        server.gauges.waiting.set_function(lambda: server.turns.waiting)
        follower, prices = asyncio.create_task(server.follow()), asyncio.create_task(server.load_prices())
        yield
        prices.cancel()
        follower.cancel()
        await asyncio.to_thread(partial(server.refresh, last=True))

    app = FastAPIOffline(title=f"sp500: {models.name}", version=__version__, lifespan=running, redoc_url=None)
    _add_errors(app)
    _add_page(app)
    _add_state(app, server)
    _add_history(app, server)
    _add_answers(app, server)
    _extend_docs(app, server, with_key=key.is_needed)
    paths = {str(getattr(route, "path", "")) for route in app.routes}
    return Guard(app, key, server.gauges, server.turns, paths, tells_id=tells_id)


def _add_answers(app: FastAPI, server: Server) -> None:
    @app.post("/v1/forecast", response_model=Forecast | Forecasts, responses=_ERRORS)
    async def forecast(body: Prices, request: Request) -> Response:
        """Forecast the next session(s) after the last price, sent with the request or known to the server."""
        champion = server.models.choice.champion if body.known() else None
        prices = await server.run_download(server.history.prices, champion) if champion else None
        return await server.answer(request, lambda predictor: requests.answer(predictor, body, prices))

    @app.post("/v1/windows", response_model=Outputs, responses=_ERRORS)
    async def windows(body: WindowsBody, request: Request) -> Response:
        """Return the model's outputs for windows that are encoded and scaled already."""

        def compute(predictor: Predictor) -> dict[str, object]:
            """Compute the answer in the model's thread."""
            outputs = predictor.outputs(body.windows(predictor))
            if not np.isfinite(outputs).all():
                raise refuse("x", "leads to an output that is not finite")
            return {"outputs": outputs.tolist()}

        return await server.answer(request, compute)

    @app.post("/v1/images", response_model=Classes, responses=_ERRORS)
    async def images(body: ImagesBody, request: Request) -> Response:
        """Return the class of each image, by a model that was trained on images."""
        return await server.answer(request, lambda predictor: classify(predictor, body))

    @app.post("/v1/text", response_model=Text, responses=_ERRORS)
    async def text(body: TextBody, request: Request) -> Response:
        """Continue a text, by a model that was trained on text."""
        return await server.answer(request, lambda predictor: write(predictor, body))


def _extend_docs(app: FastAPI, server: Server, *, with_key: bool) -> None:
    """Put examples into /docs that can be sent as they are. Where a key is needed, a field for the key instead."""
    plain = app.openapi

    def extend_schema() -> dict[str, Any]:
        """Add examples of the model that answers now."""
        schema, champion = plain(), server.models.choice.champion
        if with_key:  # and no examples, which are the run's own prices
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}]
        elif champion:
            schemas = schema["components"]["schemas"]
            schemas["WindowsBody"]["example"] = {"x": champion.predictor.recipe.test_input.numbers.tolist()}
            # This runs in the event loop, where a download would keep all requests waiting.
            if server.history.is_loaded(champion) and (prices := server.history.prices(champion)):
                schemas["Prices"]["example"] = server.history.request(champion, prices.tickers[0])
        return schema

    app.openapi = extend_schema  # type: ignore[method-assign]


def _add_page(app: FastAPI) -> None:
    here = Path(__file__).parent

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """Return a page for a person."""
        policy = "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'unsafe-inline'; img-src data:"
        return FileResponse(here / "page.html", headers={"content-security-policy": policy})

    @app.get("/page.js", include_in_schema=False)
    async def script() -> Response:
        """Return the page's script."""
        return FileResponse(here / "page.js")


def _add_state(app: FastAPI, server: Server) -> None:
    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Return that the process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> Response:
        """Check that the model gives the stored answer to the stored test window, by the same path as requests."""
        champion = server.models.choice.champion
        if champion is None and server.models.choice.refused:
            return failure(503, "the promoted run is refused; see GET /v1/models")
        if champion is None:
            return JSONResponse({"status": "ok", "detail": "no model promoted"})
        if await server.check(champion):  # which is of files, and this needs no key
            return failure(503, f"run {champion.run} does not reproduce the answer stored with it; see the log")
        return JSONResponse({"status": "ok", "run": champion.run, "version": champion.version})

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        """Return which models answer, what they accept, and why the last promotion was refused, if it was."""
        choice = server.models.choice
        roles = {name: _describe(getattr(choice, name)) for name in ("champion", "canary", "shadow")}
        return {"model": server.models.name, **roles, "canary_share": choice.share, "refused": choice.refused}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counts and times of this process, for Prometheus."""
        return Response(generate_latest(server.gauges.registry), media_type=CONTENT_TYPE_LATEST)


def _add_history(app: FastAPI, server: Server) -> None:
    @app.get("/v1/prices", responses=_ERRORS)
    async def tickers() -> dict[str, object]:
        """Return the tickers that the model was trained on."""
        prices = await server.run_download(server.history.prices, server.models.choice.champion)
        return {"tickers": prices.tickers if prices else []}

    @app.get("/v1/prices/{ticker}")
    async def prices(ticker: str) -> Response:
        """Return the ticker's last prices, as a body for /v1/forecast."""
        body = await server.run_download(server.history.request, server.models.choice.champion, ticker)
        return JSONResponse(body) if body else failure(404, f"no prices of {ticker[:32]}; see /v1/prices")

    @app.get("/v1/scores")
    async def scores() -> dict[str, object]:
        """Return the errors of the logged answers and of the naive forecasts, for dates whose prices are known."""
        return {"runs": await server.scores()}


def _describe(served: Served | None) -> dict[str, object] | None:
    if served is None:
        return None
    recipe = served.predictor.recipe
    return {
        "run": served.run,
        "version": served.version,
        "task": reference_name(served.predictor.config.task),
        "paths": [path for path, kind in _PATHS.items() if requests.can_answer(served.predictor, kind)],
        "window": recipe.window,
        "row": recipe.row,
        "row_dtype": recipe.row_dtype,
        "outputs": recipe.outputs,
        "features": recipe.state.get("features"),
        "horizon": recipe.state.get("horizon"),
        **requests.describe_needs(served.predictor),
        "weights_sha256": recipe.weights_sha256,
        "state": recipe.state,
    }


_PATHS: dict[str, type] = {
    "/v1/forecast": Forecasting,
    "/v1/images": Classifying,
    "/v1/text": Continuing,
    "/v1/windows": object,
}
_ERRORS: dict[int | str, dict[str, object]] = {
    401: {"description": "The key is missing or wrong."},
    413: {"description": f"The body has more than {MOST_BYTES} bytes."},
    415: {"description": "The body is not sent as JSON, or it is compressed."},
    422: {"description": "Fields that are wrong, each with rule and date where it has one."},
    429: {"description": "Too many requests wait; come again after Retry-After seconds."},
    503: {"description": "No model was promoted."},
}


def _add_errors(app: FastAPI) -> None:
    # The handlers of FastAPI repeat the input, in which a NaN cannot be written as JSON, and that ends in status 500.
    async def invalid(_: Request, error: Exception) -> Response:
        """Return the response to a body that does not fit the schema."""
        assert isinstance(error, RequestValidationError)
        return _problems([Problem(field=_field(fault), message=str(fault["msg"])) for fault in error.errors()[:20]])

    async def bad(_: Request, error: Exception) -> Response:
        """Return the response to a body that fits the schema but breaks a rule."""
        assert isinstance(error, BadRequest)
        return _problems(error.problems)

    async def http(_: Request, error: Exception) -> Response:
        """Return the response to an unknown path, or to JSON that cannot be read."""
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.BAD_REQUEST:
            return _problems([Problem(field="body", message="cannot be read as JSON in UTF-8")])
        return failure(error.status_code, str(error.detail))

    async def unavailable(_: Request, error: Exception) -> Response:
        """Return the response to an error that is not the caller's, such as prices that cannot be downloaded."""
        return failure(503, str(error))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(SP500Error, unavailable)
    app.add_exception_handler(BadRequest, bad)
    app.add_exception_handler(HTTPException, http)


def _field(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "json_invalid":  # its place is a character
        return "body"
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"] if part != "body"]
    return "".join(parts).lstrip(".") or "body"


def _problems(faults: Sequence[Problem]) -> JSONResponse:
    problems = [problem.model_dump(exclude_defaults=True) for problem in faults]
    first = problems[0]
    return failure(422, f"{first['field']}: {first['message']}", problems=problems)
