"""Requests from several clients at once, each one after the other, and how long they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
import numpy as np


class Load(NamedTuple):
    """Requests to a server, and the milliseconds of those that were answered; NaN if none was."""

    requests: int
    failed: int
    per_second: float
    """Requests that were answered."""
    p50_ms: float
    p99_ms: float


def load(url: str, body: Mapping[str, Any], *, clients: int, seconds: float, key: str) -> Load:
    """Send POST `body` to `url` for so many seconds.

    An answer other than 200 counts as failed, as does none within 60 s.
    """
    return asyncio.run(_load(url, body, clients, seconds, key))


async def _load(url: str, body: Mapping[str, Any], clients: int, seconds: float, key: str) -> Load:
    end, took, failed = time.perf_counter() + seconds, list[float](), 0

    async def client(session: aiohttp.ClientSession) -> None:
        """Send one request after the other."""
        nonlocal failed
        while (begun := time.perf_counter()) < end:
            try:
                async with session.post(url, json=body) as answer:
                    await answer.read()
                    good = answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                good = False
            if good:
                took.append(1e3 * (time.perf_counter() - begun))
            else:
                failed += 1

    limit, patience = aiohttp.TCPConnector(limit=clients), aiohttp.ClientTimeout(60)
    begun, headers = time.perf_counter(), {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(connector=limit, timeout=patience, headers=headers) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    p50, p99 = np.percentile(took, [50, 99]).tolist() if took else (float("nan"),) * 2
    return Load(len(took) + failed, failed, len(took) / (time.perf_counter() - begun), p50, p99)
