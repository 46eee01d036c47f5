"""`sp500.serve`: a trained run answers over HTTP from a thread of this process, such as a notebook's."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sp500.errors import SP500Error, extra
from sp500.formatting import http_address

if TYPE_CHECKING:
    from sp500.serving.connections import Server

LOOPBACK = "127.0.0.1"


class Served:
    """A server that answers until `stop`, or until the process ends. Also a context manager."""

    def __init__(self, url: str, description: str, server: Server, thread: threading.Thread) -> None:
        self.url = url
        """Its address; `url + "/docs"` describes the requests."""
        self._description, self._server, self._thread = description, server, thread

    def stop(self) -> None:
        """Answer what was accepted, and end."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{self.url} {'answers' if self._thread.is_alive() else 'answered'} with {self._description}"


def serve(
    name: str, *, runs_dir: str | Path = "runs", port: int = 0, key: str = "", trust_source: bool = False
) -> Served:
    """Serve a run, or a model that runs were promoted for, to this machine; `sp500 serve` serves others.

    `port`: 0 for any that is free; `key`: what requests have to bring as `Authorization: Bearer KEY`; `trust_source`:
    run the Python files of a run that did not begin on this machine. Raises ConfigError if the run cannot answer.
    """
    with extra("serve"):
        from sp500.serving import app, connections, models
        from sp500.serving.guard import Key
    served, answers = models.open_model(Path(runs_dir).expanduser(), name, trust_source=trust_source)
    listening = connections.listen(LOOPBACK, port)
    server = connections.Server(app.create(served, key=Key(key, None), answers=answers))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="sp500-serve", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise SP500Error("the server ended before it answered; its reason is above")
        time.sleep(0.01)
    return Served(http_address(LOOPBACK, listening.getsockname()[1]), served.description, server, thread)
