"""An HTTP application on Ray Serve: replicas that restart, on this machine or on a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve

from sp500.distributed import session
from sp500.errors import ResourcesError

NAME = "sp500"
LIMITS: dict[str, Any] = {
    # Ray's default of 5 would keep a replica waiting for its proxy.
    "max_ongoing_requests": 64,
    # Unlimited by default. More get status 503 from Ray's proxy.
    "max_queued_requests": 256,
    "health_check_period_s": 10,
    "graceful_shutdown_timeout_s": 10,
}


@contextmanager
def run_replicas(factory: Callable[[], Any], *, host: str, port: int, replicas: int) -> Iterator[None]:
    """The application that `factory` makes, in as many processes, for the length of the block.

    `factory` is called in every replica. It takes nothing, and what it holds travels by pickle. Raises ResourcesError
    for more replicas than the cluster has CPUs, and where Ray Serve runs already: its port and its end are another's.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with session.connected():
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if replicas > cpus:
            raise ResourcesError(f"--replicas {replicas}: each takes a CPU, and the cluster has {cpus}")
        if serve.status().proxies:
            raise ResourcesError("Ray Serve runs already on this cluster; end that, or take another cluster")
        serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
        try:
            made = serve.ingress(factory)()
            deployment = serve.deployment(made, name="model", num_replicas=replicas, **LIMITS)
            try:
                serve.run(deployment.bind(), name=NAME, route_prefix="/")
            except RuntimeError as error:
                raise ResourcesError(f"no replica answers: {str(error).splitlines()[0]}") from error
            yield
        finally:
            serve.shutdown()
