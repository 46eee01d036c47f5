"""The application on a real port, in a thread of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import requests

from sp500.serving import app, connections, models
from sp500.serving.answers import AnswerLog
from sp500.serving.guard import Key


def body(close: pd.Series, **more: Any) -> dict[str, Any]:
    """A request for the forecast after these prices."""
    dates = [f"{day:%Y-%m-%d}" for day in close.index]
    return {"ticker": str(close.name), "dates": dates, "close": close.tolist(), **more}


class Client:
    """Requests to one server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.session = requests.Session()

    def get(self, path: str, **more: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=60, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> requests.Response:
        return self.session.post(self.url + path, json=body, timeout=60, **more)


@contextmanager
def serving(runs: Path, name: str, *, key: str = "") -> Iterator[tuple[Client, Any, AnswerLog | None]]:
    """A client, what answers, and the log of answers."""
    served, answers = models.open_model(runs, name)
    made = app.create(served, key=Key(key), answers=answers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = connections.Server(made)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Client(listening.getsockname()[1]), served, answers
        finally:
            server.should_exit = True
            thread.join()
