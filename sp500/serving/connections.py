"""Limits that uvicorn lacks: of the bytes around a body, of the time that a request takes to arrive, of connections."""

from __future__ import annotations

import os
import socket
from http import HTTPStatus
from itertools import count
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sp500.errors import ConfigError
from sp500.machine.system import open_files_limit

MOST_FRAMING = 2**16
"""Bytes of a request besides its body: its head, and the sizes and trailers of a body that comes in chunks."""
HEAD_SECONDS, BODY_SECONDS = 10.0, 30.0
"""Time for a head to arrive, and from there on for the body."""
KEPT_SECONDS = 90
"""A connection without a request stays for so long, as Ray's proxies keep theirs. Proxies and load balancers send the
next request on one that they keep for 60 s: with uvicorn's 5 s it would meet a closed one, which is their status 502.
"""
MOST_UNREAD = 2**22
"""Bytes of a body that are read after its answer, which a client may miss that is ended while it sends."""
MOST_CONNECTIONS, MOST_QUEUED = 512, 2048
"""Of clients at once, and of those that the kernel keeps until the loop gets to them."""
TURNS = count()


def count_allowed() -> int:
    """Return the allowed number of connections: a quarter of the files that the process may open."""
    files = open_files_limit()
    return MOST_CONNECTIONS if files is None else min(MOST_CONNECTIONS, files // 4)


def _reason(error: OSError) -> str:
    # `socket.create_server` adds the address to strerror, and the message has it already.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises ConfigError if it cannot."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
        # Accepted sockets inherit it. asyncio sets it only on sockets that it opened by host and port: head and body of
        # an answer then wait for each other's acknowledgement, 40 ms on a connection that is kept open.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({_reason(error)})") from None


class Connection(HttpToolsProtocol):
    """A connection that ends if its client sends too much around a body, or too slowly.

    With too many connections a new one takes the place of the one that has been waiting for its client the longest:
    who asks at once gets an answer, however many others hold theirs open.
    """

    _framing, _unread = 0, 0
    _due: float | None
    """Until when the request has to be there; None: it is, or none was begun."""
    _turn: int
    """Grows with the moment from which it waits for its client: the clock of a loop has only milliseconds."""

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        """Count the connection, and end another one if there are too many."""
        super().connection_made(transport)
        self._turn, self._due = next(TURNS), self.loop.time() + HEAD_SECONDS
        self._timer = self.loop.call_at(self._due, self._end_late)
        others = [other for other in self.connections if not other.transport.is_closing()]
        if len(others) > count_allowed():
            waiting = [other for other in others if isinstance(other, Connection) and other.waits_for_client]
            if waiting:
                min(waiting, key=lambda other: other._turn).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """True if no complete request waits for its answer."""
        return self._due is not None or self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take a part, unless there were too many bytes around bodies."""
        self._due = self._due or self.loop.time() + HEAD_SECONDS
        self._framing += len(data)
        super().data_received(data)
        if self._framing > MOST_FRAMING and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                head = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                self.transport.write(head.encode())
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the time of a request that came in one part with another."""
        super().on_message_begin()
        self._due = self._due or self.loop.time() + HEAD_SECONDS

    def on_headers_complete(self) -> None:
        """Give the body its time."""
        super().on_headers_complete()
        self._due = self.loop.time() + BODY_SECONDS

    def on_body(self, body: bytes) -> None:
        """Subtract body bytes from the framing, and count those that are no longer read."""
        self._framing -= len(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > MOST_UNREAD:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect nothing more of the client."""
        self._due, self._framing, self._unread = None, 0, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the client from now on."""
        self._turn = next(TURNS)
        super().on_response_complete()

    def _end_late(self) -> None:
        now, paused = self.loop.time(), self.flow.read_paused  # then it is not the client that takes the time
        if self._due is not None and now >= self._due and not paused:
            self.transport.abort()
        elif not self.transport.is_closing():
            later = self._due if self._due is not None and not paused else now + HEAD_SECONDS
            self._timer = self.loop.call_at(later, self._end_late)


class Server(uvicorn.Server):
    """A server that accepts several new connections in one turn of its loop.

    uvloop accepts one, so that in a flood a request waits for as many turns as there are connections before it. The
    loop of asyncio accepts as many as its queue is long when it begins to listen.
    """

    def __init__(self, application: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=Connection,
                ws="none",
                loop="asyncio",
                backlog=max(count_allowed() // 3, 1),  # of which three times as many may be on their way
                log_level="warning",
                access_log=False,
                timeout_keep_alive=KEPT_SECONDS,
                timeout_graceful_shutdown=10,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a longer queue from then on, in which clients stay until they have sent something."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(MOST_QUEUED)
            if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux has it
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(HEAD_SECONDS))


def limit_uvicorn() -> list[object]:
    """Make `Connection` what uvicorn uses by default in this process.

    Ray Serve calls it in its proxies and replicas before these listen (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH), and
    expects middlewares: none. It passes no protocol to uvicorn otherwise.
    """
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Connection.__name__}"
    return []
