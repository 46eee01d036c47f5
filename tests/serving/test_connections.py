"""What a client may do to a connection before its request is whole."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from http_server import serving

from sp500.jobs.manifests.rayservice import FAST_PROXY
from sp500.machine import system
from sp500.serving import connections

LONG = 60.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
HALF = b"GET /healthz HTTP/1.1\r\nX-A: b"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"POST /v1/windows HTTP/1.1\r\nHost: a\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def port(served_runs: Path) -> Iterator[int]:
    with serving(served_runs, "synthetic") as (client, *_):
        yield int(client.url.rpartition(":")[2])


def connect(port: int, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=LONG)
    made.sendall(data)
    return made


def received(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def taken(port: int, first: bytes, part: bytes) -> tuple[int, bytes]:
    """Bytes that a client gets rid of before it is ended, sent slowly enough for that to be seen; and the answer."""
    sent, answer = 0, b""
    with connect(port, first) as connection:
        connection.settimeout(0.01)
        while sent < 2**22:
            try:
                connection.sendall(part)
                sent += len(part)
                answer += connection.recv(1000) or exit_loop()
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionError):
                break
    return sent, answer


def exit_loop() -> bytes:
    raise ConnectionError


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (b"GET /healthz HTTP/1.1\r\nX-A: ", b"b" * 10_000),
        (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n" * 1_000),
        (b"GET /", b"a" * 10_000),
        (CHUNKED + b"0\r\n", b"X-A: " + b"b" * 10_000 + b"\r\n"),
        (CHUNKED, b"1\r\n \r\n" * 2_000),
        (CHUNKED, b"1;" + b"a" * 10_000 + b"\r\n \r\n"),
        (b"", b"\r\n" * 5_000),
    ],
    ids=["a long line", "many lines", "a long path", "trailers", "small chunks", "extensions of chunks", "empty lines"],
)
def test_endless_bytes_around_a_body_are_refused(port, first, part):
    sent, _ = taken(port, first, part)
    assert sent < 2**18
    with connect(port, HEALTH) as other:
        assert other.recv(100).startswith(b"HTTP/1.1 200")


def test_head_that_is_too_large_is_told_so(port):
    with connect(port, b"GET /healthz HTTP/1.1\r\nX-A: " + b"b" * (connections.MOST_FRAMING + 1)) as connection:
        assert received(connection).startswith(b"HTTP/1.1 431 ")


def test_head_and_chunks_of_a_usual_size_are_answered(port):
    chunks = b"".join(b"400\r\n" + b" " * 0x400 + b"\r\n" for _ in range(1000)) + b"2\r\n{}\r\n0\r\n\r\n"
    data = CHUNKED.replace(b"Host", b"X-A: " + b"b" * 30_000 + b"\r\nHost") + chunks
    with connect(port, data + HEALTH) as connection:
        answer = connection.recv(2**16)
        while b"200 OK" not in answer:
            answer += connection.recv(2**16)
        assert answer.startswith(b"HTTP/1.1 422 ")


@pytest.mark.parametrize("data", [b"G", HALF, CHUNKED + b"1\r\n", HEALTH + HALF])
def test_request_that_does_not_arrive_is_ended_in_time(port, data, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    begun = time.monotonic()
    with connect(port, data) as connection:
        received(connection)
    assert time.monotonic() < begun + 4


def test_slow_answer_ends_no_connection(served_runs, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    with serving(served_runs, "synthetic") as (client, served, _):
        predictor, held = served.choice.champion.predictor, threading.Event()
        predictor.model.register_forward_pre_hook(lambda *_: held.wait(LONG) and None)
        threading.Timer(0.6, held.set).start()
        port = int(client.url.rpartition(":")[2])
        others = [threading.Timer(0.05 * number, connect, (port, HALF)) for number in range(1, 8)]
        for other in others:
            other.start()
        answer = client.post("/v1/windows", {"x": predictor.recipe.test_input.numbers.tolist()})
        assert answer.status_code == 200


def test_connection_without_a_request_stays_longer_than_proxies_keep_it():
    assert connections.Server(lambda: None).config.timeout_keep_alive > 60  # nginx, and load balancers of AWS


def test_new_connection_takes_the_place_of_the_one_that_waited_longest(port, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    half = [connect(port, HALF) for _ in range(20)]
    with connect(port, HEALTH) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    end = time.monotonic() + LONG
    while sum(map(is_open, half)) > 4:
        assert time.monotonic() < end
    assert [is_open(one) for one in half] == [False] * 17 + [True] * 3
    for one in half:
        one.close()


def test_few_files_allow_few_connections(monkeypatch):
    for files, allowed in ((64, 16), (10**6, connections.MOST_CONNECTIONS), (-1, connections.MOST_CONNECTIONS)):
        monkeypatch.setattr(system.resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections.count_allowed() == allowed


def test_servers_of_ray_get_the_same_connections(monkeypatch):
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "anything")
    module, _, name = FAST_PROXY["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].partition(":")
    assert (module, getattr(connections, name)()) == (connections.__name__, [])
    config = uvicorn.Config(lambda: None, factory=True, lifespan="off")
    config.load()
    assert config.http_protocol_class is connections.Connection
