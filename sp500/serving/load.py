"""Requests from several clients at once, each one after the other, and how long they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import numpy as np

from sp500.runs.results import LoadTimes


def load(url: str, body: Mapping[str, object], *, clients: int, seconds: float, key: str = "") -> LoadTimes:
    """Send POST `body` to `url` for so many seconds.

    An answer other than 200 counts as failed, as does none within 60 s.
    """
    return asyncio.run(_load(url, body, clients, seconds, key))


async def _load(url: str, body: Mapping[str, object], clients: int, seconds: float, key: str) -> LoadTimes:
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
    begun = time.perf_counter()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(connector=limit, timeout=patience, headers=headers) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    p50, p99, longest = np.percentile(took, [50, 99, 100]).tolist() if took else [None] * 3
    return {
        "requests": len(took) + failed,
        "failed": failed,
        "per_second": len(took) / (time.perf_counter() - begun),
        "p50_ms": p50,
        "p99_ms": p99,
        "longest_ms": longest,
    }
