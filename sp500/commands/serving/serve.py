"""`sp500 serve`: a trained run, or a model of the registry, answers over HTTP."""

from __future__ import annotations

import gc
import ipaddress
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.credentials import API_KEY
from sp500.errors import ConfigError, extra
from sp500.execution import Interrupted
from sp500.formatting import http_address, some
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.serving.registry import DEFAULT


class Serve(Frozen):
    """Serve a trained run or a model over HTTP: POST /v1/forecast, images, text or windows; /docs describes all."""

    name: Annotated[str, tyro.conf.Positional] = DEFAULT
    """A model that runs were promoted for (sp500 models promote), or a run."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address but the loopback one needs a key."""
    port: int = Field(8000, ge=0, lt=65536)
    """Port to listen on; 0: any that is free."""
    key_file: Path | None = None
    """File with the key that requests have to bring as 'Authorization: Bearer KEY'. Default: $SP500_API_KEY."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder of the runs. $SP500_RUNS_DIR sets another default."""
    on: Literal["local", "ray", "kuberay"] = "local"
    """local: one process; ray: replicas on Ray Serve, of $RAY_ADDRESS or of this machine; kuberay: a RayService."""
    replicas: int = Field(2, gt=0)
    """Processes of --on ray."""
    namespace: str = "sp500"
    """Namespace of --on kuberay."""
    context: str | None = None
    """Context of your kubeconfig for --on kuberay. Default: the current one."""
    manifest: Path = Path("cluster/rayservice.yaml")
    """File with the RayService of --on kuberay."""
    image: str = ""
    """Image of its pods, with the extra `serve`. Default: the manifest's."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that its pods may take to answer."""
    trust_source: bool = False
    """Run the Python files in a run's folder (source/), even if no command on this machine has used them. Only for runs
    you trust."""


def main(argv: Sequence[str], prog: str = "sp500 serve", on: Literal["local", "ray"] = "local") -> int:
    """Serve until a signal and return the exit code. `on` is the default of --on."""

    def run() -> tuple[str, int]:
        """Return what was deployed, or nothing once the server has ended; and the exit code."""
        flags = arguments.parse(Serve, argv, prog, default=Serve(on=on))
        if flags.on == "kuberay":
            return _serve_on_kuberay(flags), 0
        secret = key(flags)
        with extra("serve"):
            import fastapi_offline  # noqa: F401 - a missing package is named before torch is imported
            import uvicorn  # noqa: F401
        try:
            (_serve_here if flags.on == "local" else _serve_on_ray)(flags, secret)
        except Interrupted:  # it has answered what it had accepted
            return "", 0
        return "", 0

    return run_command(run, only_json=False)


def _serve_on_kuberay(flags: Serve) -> str:
    from sp500.commands.serving import kuberay

    _refuse_others(flags)
    return kuberay.deploy(
        Kubectl(flags.namespace, flags.context),
        flags.manifest,
        flags.name,
        image=flags.image,
        key=_read_key(flags),
        trust_source=flags.trust_source,
        seconds=flags.timeout,
    )


def _serve_here(flags: Serve, secret: str) -> None:
    from sp500.serving import app, connections, models
    from sp500.serving.guard import Key

    with connections.listen(flags.host, flags.port) as listening:
        served, answers = models.open_model(flags.runs_dir, flags.name, trust_source=flags.trust_source)
        application = app.create(served, key=Key(secret, flags.key_file), answers=answers)
        # Otherwise each of the collections that a body of many lists sets off looks at all of torch: half a second.
        gc.freeze()
        _say(flags.host, listening.getsockname()[1], served.description)
        connections.Server(application).run(sockets=[listening])


def _serve_on_ray(flags: Serve, secret: str) -> None:
    from sp500.commands.serving.application import make
    from sp500.distributed import serve
    from sp500.serving import connections, models

    runs, name, trusted = flags.runs_dir.absolute(), flags.name, flags.trust_source
    with connections.listen(flags.host, flags.port) as free:
        port = free.getsockname()[1]
    # Here first: a run that cannot answer is refused in a second, where Ray would start its replica again and again.
    description = models.open_model(runs, name, trust_source=trusted)[0].description
    # The key itself and not its file: other nodes may not have that.
    factory = partial(make, runs, name, secret, None, trusted)
    with serve.run_replicas(factory, host=flags.host, port=port, replicas=flags.replicas):
        _say(flags.host, port, f"{description}, {some(flags.replicas, 'replica')}")
        signal.pause()


def _say(host: str, port: int, description: str) -> None:
    print(f"{http_address(host, port)} answers with {description}; API: /docs", file=sys.stderr, flush=True)


def _refuse_others(flags: Serve) -> None:
    """Raise ConfigError for flags that a RayService has in its manifest."""
    for name in ("host", "port", "replicas"):
        if getattr(flags, name) != type(flags).model_fields[name].default:
            raise ConfigError(f"--{name}: not with --on kuberay, where {flags.manifest} says it; leave it out")


def key(flags: Serve) -> str:
    """Return the key that requests must bring; empty: none.

    Raises ConfigError if others reach the address without one.
    """
    secret = _read_key(flags)
    if not secret and not _is_own(flags.host):
        raise ConfigError(f"--host {flags.host}: others can reach this address; set {API_KEY} or give --key-file FILE")
    return secret


def _read_key(flags: Serve) -> str:
    secret = os.environ.get(API_KEY, "").strip()
    if flags.key_file:
        try:
            secret = flags.key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--key-file {flags.key_file}: cannot be read ({error})") from None
        if not secret:
            raise ConfigError(f"--key-file {flags.key_file}: is empty")
    return secret


def _is_own(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
