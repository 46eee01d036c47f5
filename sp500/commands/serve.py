"""`sp500 serve`: a trained run, or a model of the registry, answers over HTTP."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.console.output import concluded
from sp500.errors import ConfigError, extra
from sp500.execution import Interrupted
from sp500.serving.registry import DEFAULT

KEY = "SP500_API_KEY"


class Serve(Frozen):
    """Answer over HTTP with a trained run: POST /v1/forecast, /v1/windows; a page of all of it at /docs."""

    name: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A model that runs were promoted for (sp500 models promote), or a run."""
    host: str = "127.0.0.1"
    """Address to listen on. Others than this machine's own need a key."""
    port: int = Field(8000, ge=0, lt=65536)
    """Port to listen on; 0: any that is free."""
    key_file: Path | None = None
    """File with the key that requests have to bring as 'Authorization: Bearer KEY'. Default: $SP500_API_KEY."""
    runs_dir: Path = Field(default_factory=lambda: folders.runs(os.environ))
    """Folder of the runs. Default: $SP500_RUNS_DIR, or runs."""
    on: Literal["local", "ray"] = "local"
    """local: one process; ray: replicas on Ray Serve, of $RAY_ADDRESS or of this machine."""
    replicas: int = Field(2, gt=0)
    """Processes of --on ray."""
    benchmark: bool = False
    """Load one plain process, and 1 and 2 replicas on Ray, with 1, 8 and 32 clients, and print a table."""
    seconds: float = Field(10.0, gt=0)
    """Length of each load of --benchmark."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """The table of --benchmark as one JSON object on stdout."""
    trust_source: bool = False
    """Run the Python that lies in a run's folder (source/) although it was never given on this machine."""


def main(argv: Sequence[str]) -> int:
    """Serve until a signal, to the exit code."""

    def acted() -> tuple[str, int]:
        """The table of a benchmark, or nothing once the server has ended; and the exit code."""
        flags = tyro.cli(
            Serve,
            prog="sp500 serve",
            args=list(argv),
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        secret = "" if flags.benchmark else key(flags)
        with extra("serve"):
            import fastapi_offline  # noqa: F401 - a missing package is named before torch is imported
            import uvicorn  # noqa: F401
        if flags.benchmark:
            from sp500.commands import serve_benchmark

            rows = serve_benchmark.measure(flags.runs_dir.absolute(), flags.name, flags.seconds)
            return json.dumps({"rows": rows}, indent=1) if flags.json_output else serve_benchmark.text(rows), 0
        try:
            (_serve_here if flags.on == "local" else _serve_on_ray)(flags, secret)
        except Interrupted:  # it has answered what it had taken
            return "", 0
        return "", 0

    return concluded(acted, only_json="--json" in argv)


def _serve_here(flags: Serve, secret: str) -> None:
    import uvicorn

    from sp500.serving import app, models

    with _listen(flags.host, flags.port) as listening:
        served, answers = models.open_model(flags.runs_dir, flags.name, trust_source=flags.trust_source)
        made = app.create(served, key=secret, answers=answers)
        config = uvicorn.Config(made, log_level="warning", access_log=False, timeout_graceful_shutdown=10)
        _say(flags.host, listening.getsockname()[1], served.description)
        uvicorn.Server(config).run(sockets=[listening])


def _serve_on_ray(flags: Serve, secret: str) -> None:
    from sp500.distributed import serve
    from sp500.serving import app, models

    runs, name, trusted = flags.runs_dir.absolute(), flags.name, flags.trust_source

    def make_app() -> object:
        """The application of one replica."""
        served, answers = models.open_model(runs, name, trust_source=trusted)
        return app.create(served, key=secret, answers=answers, tells_id=False)

    with _listen(flags.host, flags.port) as free:
        port = free.getsockname()[1]
    # Here first: a run that cannot answer is refused in a second, where Ray would start its replica again and again.
    description = models.open_model(runs, name, trust_source=trusted)[0].description
    with serve.run_replicas(make_app, host=flags.host, port=port, replicas=flags.replicas):
        _say(flags.host, port, f"{description}, {flags.replicas} replicas")
        signal.pause()


def _say(host: str, port: int, what: str) -> None:
    print(f"http://{host}:{port} answers with {what}; API: /docs", file=sys.stderr, flush=True)


def key(flags: Serve) -> str:
    """What requests have to bring; empty: nothing. Raises ConfigError where an address that others reach has none."""
    found = os.environ.get(KEY, "").strip()
    if flags.key_file:
        try:
            found = flags.key_file.expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--key-file {flags.key_file}: cannot be read ({error})") from None
        if not found:
            raise ConfigError(f"--key-file {flags.key_file}: is empty")
    if not found and not _is_own(flags.host):
        raise ConfigError(f"--host {flags.host}: others can reach this address; set {KEY} or give --key-file FILE")
    return found


def _is_own(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: OSError) -> str:
    # `socket.create_server` adds the address to strerror, and the message has it already.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({_reason(error)})") from None
    return made
