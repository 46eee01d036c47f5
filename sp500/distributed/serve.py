"""An HTTP application on Ray Serve: replicas that restart, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import ray
from ray import serve

from sp500.distributed import session
from sp500.errors import ResourcesError
from sp500.formatting import http_address

Application = serve.Application
"""An application as Ray Serve deploys it."""
NAME = "sp500"
LIMITS: dict[str, object] = {
    # Ray's default of 5 would keep a replica waiting for its proxy.
    "max_ongoing_requests": 64,
    # Unlimited by default.
    "max_queued_requests": 256,
    "backpressure_config": {"status_code": 429, "retry_after_s": 1},
    # By default an old replica ends before a new one has started.
    "max_surge_percent": 100,
    "health_check_period_s": 10,
    "graceful_shutdown_timeout_s": 10,
}
PROBE_SECONDS = 5.0
"""Time for the kubelet to probe each proxy (readinessProbe of cluster/rayservice.yaml) and report it ready."""
# uvicorn in Ray's proxies accepts heads of any size for any time. Ray calls this before they listen.
LIMITED_PROXY = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "sp500.serving.connections:limit_uvicorn"}
REQUEST_SECONDS = 30.0
"""Longest wait for an answer; Ray has no limit by default. Status 408 after that."""

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past the proxies of the environment, which do not reach pods."""


def application(factory: Callable[[], Any], *, replicas: int = 1, gate: int = 0) -> serve.Application:
    """Return the HTTP application that `factory` makes, as a deployment `model`.

    `factory` is called in every replica. It has no arguments, and what it holds travels by pickle. With the
    proxies' port as `gate` the whole counts as running when requests can reach it: KubeRay sends them to a new cluster
    at that moment.
    """

    def make() -> Any:
        """Wrap the factory: Ray calls functions only, and treats any other callable as the application itself."""
        return factory()

    deployment = serve.deployment(serve.ingress(make)(), name="model", num_replicas=replicas, **LIMITS)
    if not gate:
        return deployment.bind()
    return deployment.bind(serve.deployment(Gate, name="gate", ray_actor_options={"num_cpus": 0}).bind(gate))


class Gate:
    """Starts once every proxy has answered and the kubelet had time to see it; Ray calls an application running before.

    It does nothing afterwards. Ray has no other way to hold an application back.
    """

    def __init__(self, port: int) -> None:
        while not (urls := _proxies(port)) or not all(map(_answers, urls)):
            time.sleep(0.5)
        time.sleep(PROBE_SECONDS)

    def __call__(self) -> None:
        """Do nothing: Ray requires a callable, and never calls it."""


def _proxies(port: int) -> list[str]:
    """Return the address of each proxy that asks a replica, the head's too; none before Serve has started them."""
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return [f"{http_address(nodes[node], port)}/healthz" for node in serve.status().proxies if node in nodes]


def _answers(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except (OSError, ValueError):
        return False


@contextmanager
def run_replicas(factory: Callable[[], Any], *, host: str, port: int, replicas: int) -> Iterator[None]:
    """Run `application` in as many processes, for the length of the block.

    Raises ResourcesError for more replicas than the cluster has CPUs, and if Ray Serve is already running: its
    port and its end belong to another program.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    os.environ |= {name: os.environ.get(name, value) for name, value in LIMITED_PROXY.items()}
    with session.connect():
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if replicas > cpus:
            raise ResourcesError(f"--replicas {replicas}: each needs a CPU, and the cluster has {cpus}")
        if serve.status().proxies:
            raise ResourcesError(
                "Ray Serve is already running on this cluster; stop it with `serve shutdown`, or use another cluster"
            )
        options = {"host": host, "port": port, "request_timeout_s": REQUEST_SECONDS}
        serve.start(http_options=options, logging_config={"log_level": "WARNING"})
        try:
            try:
                serve.run(application(factory, replicas=replicas), name=NAME, route_prefix="/")
            except RuntimeError as error:
                raise ResourcesError(f"no replica answers: {str(error).splitlines()[0]}") from error
            yield
        finally:
            serve.shutdown()
