"""The Ray cluster that RAY_ADDRESS names for scripts."""

from __future__ import annotations

import os
import re

from sp500.errors import ConfigError

VARIABLE = "RAY_ADDRESS"
KNOWN = re.compile(r"auto|(ray://)?[^/\s]+:\d+")
# Ray's own word for no cluster but one that is started here.
NO_CLUSTER = ("", "local")


def read() -> str:
    """Return the address as it is set; empty without one, so that a cluster is started on this machine."""
    address = os.environ.get(VARIABLE, "").strip()
    return "" if address in NO_CLUSTER else address


def is_dashboard(address: str) -> bool:
    """Return whether it is that of the Jobs API, which the guides set for `sp500 jobs` and `ray job submit`."""
    return address.startswith(("http://", "https://"))


def check(address: str) -> None:
    """Raise ConfigError for an address that no script can connect to."""
    if is_dashboard(address):
        raise ConfigError(
            f"{VARIABLE} = {address} is the address of a dashboard, which accepts jobs. A script cannot connect to it. "
            "To run on that cluster: sp500 jobs submit --on ray -- python ...; to run on this machine: unset "
            f"{VARIABLE}"
        )
    if address and not KNOWN.fullmatch(address):
        raise ConfigError(
            f"{VARIABLE} = {address} is not the address of a Ray cluster. Expected HOST:PORT such as 10.0.0.1:6379, or "
            f"auto for the cluster of this machine. Correct it, or unset {VARIABLE} to start Ray here"
        )
