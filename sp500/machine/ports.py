"""Ports of this machine."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def find_free_port(host: str = LOOPBACK) -> int:
    """Return a port that is free now on this address; '' means all addresses."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
