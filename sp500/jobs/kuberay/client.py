"""The client of the `kubernetes` package, with the user's kubeconfig or, inside a pod, the pod's own account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sp500.errors import Unreachable, extra


def client_of(context: str | None, kubeconfig: str | None) -> Any:
    """An ApiClient that repeats nothing by itself. Raises Unreachable without a kubeconfig, or with a damaged one."""
    with extra("cluster"):
        from kubernetes import client, config
        from kubernetes.config import ConfigException
    from yaml import YAMLError

    settings = client.Configuration()
    settings.retries = False
    where = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        if not _kubeconfigs(where):
            try:
                config.load_incluster_config(settings)
            except ConfigException:
                raise Unreachable(f"no kubeconfig at {where}, and this is not a pod with a service account") from None
            return client.ApiClient(settings)
        return config.new_client_from_config(kubeconfig, context, client_configuration=settings)
    except (ConfigException, YAMLError, OSError, TypeError) as error:  # the last: of a file that is not a mapping
        raise Unreachable(
            f"cannot reach a cluster with kubeconfig {where}{f', context {context}' if context else ''}: {error};"
            " `kubectl config get-contexts` lists the contexts; choose one with --context or $KUBECONFIG"
        ) from error


def _kubeconfigs(places: str) -> bool:
    """Whether there is a kubeconfig at one of the places, separated by colons."""
    return any(Path(place).expanduser().exists() for place in places.split(":") if place)
