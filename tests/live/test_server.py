"""The page on loopback answers one address of one name, and nothing that a request says reaches the disk."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from sp500.live.server import LiveServer
from sp500.report import page

MADE = "<p>é</p>"


@pytest.fixture
def server() -> Iterator[LiveServer]:
    made = []

    def make() -> str:
        made.append(1)
        return MADE if len(made) == 1 else f"{MADE}{len(made)}"

    with LiveServer(make) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: LiveServer, request: str) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of the answer to raw bytes."""
    with socket.create_connection(server.server_address[:2], timeout=30) as connection:
        connection.sendall(request.encode())
        answer = http.client.HTTPResponse(connection, method=request.split(maxsplit=1)[0])
        answer.begin()
        return answer.status, answer.headers, answer.read().decode()


def get(path: str, *hosts: str) -> str:
    return "\r\n".join([f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""])


def test_page_is_served_on_loopback_and_renews_itself(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for name in ("127.0.0.1", "localhost"):
        status, headers, body = ask(server, get(server.path, f"{name}:{server.server_port}"))
        assert (status, body) == (200, MADE)  # two looks at once make one page
        assert int(headers["Refresh"]) >= 3


def test_policy_allows_no_more_than_that_of_the_report(server: LiveServer) -> None:
    _, headers, _ = ask(server, get(server.path, f"127.0.0.1:{server.server_port}"))
    policy, template = headers["Content-Security-Policy"], page.Path(page.__file__).with_name("page.html.jinja")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; ")
    assert policy[: policy.index("; frame")] in template.read_text()
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["evil.example"],
        ["127.0.0.1"],
        ["127.0.0.1:{port}.evil.example"],
        ["127.0.0.1:{port}", "evil.example"],
        ["[::1]:{port}"],
    ],
)
def test_other_names_get_nothing(server: LiveServer, hosts: list[str]) -> None:
    status, headers, body = ask(server, get(server.path, *(host.format(port=server.server_port) for host in hosts)))
    assert (status, MADE in body) == (421, False)
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("change", ["/", "{}x", "{}?a", "{}..", "{}../etc/passwd", "/etc/passwd", "{}%2e%2e/a"])
def test_other_paths_get_nothing(server: LiveServer, change: str) -> None:
    status, _, body = ask(server, get(change.format(server.path), f"127.0.0.1:{server.server_port}"))
    assert (status, MADE in body, server.path in body) == (404, False, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"])
def test_only_get_is_answered(server: LiveServer, method: str) -> None:
    request = get(server.path, f"127.0.0.1:{server.server_port}").replace("GET", method, 1)
    assert ask(server, request)[0] == 501


def test_addresses_cannot_be_guessed(server: LiveServer) -> None:
    with LiveServer(str) as other:
        assert other.path != server.path
        assert len(other.path) >= 22
