"""Requests from several clients at once, one after the other each, and how long they took."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np


@dataclass(frozen=True)
class Times:
    """What a load found; times in milliseconds, of the requests that were answered."""

    requests: int
    failed: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None


def load(url: str, body: dict[str, Any], *, clients: int, seconds: float, key: str = "") -> Times:
    """POST `body` to `url` for so many seconds. An answer other than 200 counts as failed, as does none within 60 s."""
    return asyncio.run(_load(url, body, clients, seconds, key))


async def _load(url: str, body: dict[str, Any], clients: int, seconds: float, key: str) -> Times:
    end, took, failed = time.perf_counter() + seconds, list[float](), 0

    async def client(session: aiohttp.ClientSession) -> None:
        """One request after the other."""
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
    return Times(len(took) + failed, failed, len(took) / (time.perf_counter() - begun), p50, p99, longest)
