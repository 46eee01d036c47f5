"""A server that is flooded: what its memory and its /healthz do meanwhile, both measured from other processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
KEY = "secret"
MOST_MIB, MOST_SECONDS, MOST_SECONDS_BUSY = 512.0, 1.0, 5.0
"""Memory above idle, and the slowest /healthz: where nothing else runs, and on a machine that does other work."""
MOST_TAKEN = 16 * 2**20
"""Bytes of one head or body that a client gets rid of, of which the kernel's buffers may hold most."""
MOST_OPEN_SECONDS = 60.0
PATIENCE = 5.0
"""Time for the last answers of a flood."""
HALF_OPEN, FEW_FILES, PARALLEL = 400, 64, 8
DATA = ("--data.tickers", "AAPL", "KO", "--data.start", "2015-01-01", "--data.window", "10", "--train.epochs", "1")


def call(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sp500.cli", *words], check=True, capture_output=True)


def make_model(runs: Path) -> None:
    """A promoted run of two tickers."""
    script = [sys.executable, str(ROOT / "experiments" / "train.py"), "--runs-dir", str(runs), "--name", "m1"]
    subprocess.run([*script, *DATA], check=True, capture_output=True)
    call("models", "promote", "m1", "--runs-dir", str(runs))


def write_answers(folder: Path, count: int, seed: int) -> None:
    """A log of so many answers: a half for real days, a half for tickers that nobody knows, all different."""
    folder.mkdir(parents=True)
    chance, days = np.random.default_rng(seed), pd.bdate_range("2015-06-01", "2022-12-01")
    for first in range(0, count, 100_000):
        size = min(100_000, count - first)
        at = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(np.arange(first, first + size), "ms")
        day, real = chance.integers(0, len(days) - 1, size), np.arange(size) % 2 == 0
        made_up = np.array([f"T{number}" for number in range(first, first + size)], dtype=object)
        table = {
            "at": at, "request_id": [f"{number:032x}" for number in chance.integers(0, 2**63, size)],
            "role": "champion", "ticker": np.where(real, np.where(day % 2, "AAPL", "KO"), made_up),
            "as_of": days[day].strftime("%Y-%m-%d"), "session": days[day + 1].strftime("%Y-%m-%d"),
            "forecast": chance.normal(0, 0.01, size), "unit": "log return", "run": "m1", "version": "1",
            "naive_zero": 0.0, "naive_mean": 3e-4, "naive_previous": chance.normal(0, 0.01, size),
        }  # fmt: skip
        pd.DataFrame(table).to_parquet(folder / f"20260101T{first // 100_000:06d}-{seed:012x}.parquet")


@contextmanager
def serving(runs: Path, files: int) -> Iterator[Callable[[], tuple[int, int]]]:
    """`sp500 serve` that may open so many files (0: as this process); yields what waits for its port and process."""
    (runs / "key").write_text(KEY)
    argv = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"] if files else []
    argv += [sys.executable, "-m", "sp500.cli", "serve", "--key-file", str(runs / "key"), "--port", "0"]
    log = runs / f"stderr-{files}"
    with log.open("w") as stderr:
        process = subprocess.Popen([*argv, "--runs-dir", str(runs)], stderr=stderr)

    def wait() -> tuple[int, int]:
        deadline = time.monotonic() + 240
        while not (said := [line for line in log.read_text().splitlines() if line.startswith("http://")]):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return int(said[0].split()[0].rpartition(":")[2]), process.pid

    try:
        yield wait
    finally:
        process.terminate()
        process.wait()


def anonymous_mib(pid: int) -> float:
    """Memory that the kernel cannot take back: neither files that are mapped nor their cache."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(port: int, pid: int) -> None:
    """Ask /healthz on a new connection twenty times a second; a line of stdin ends a phase, whose figures are printed.

    `own_pause`: for how long the machine kept this process waiting, next to which no answer can be fast.
    """
    import select
    import socket

    seen: dict[str, float] = {}
    while True:
        begun = time.perf_counter()
        said = select.select([sys.stdin], [], [], 0.05)[0]
        pause = time.perf_counter() - begun - 0.05
        if said:
            if not sys.stdin.readline():
                return
            print(json.dumps(seen), flush=True)
            seen = {}
        begun, failed = time.perf_counter(), 0
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                failed = not connection.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            failed = 1
        taken = {"slowest": time.perf_counter() - begun, "own_pause": pause, "mib": anonymous_mib(pid)}
        seen |= {name: max(seen.get(name, 0), value) for name, value in taken.items()}
        seen |= {"asked": seen.get("asked", 0) + 1, "failed": seen.get("failed", 0) + failed}


class Flood:
    """What clients do to one server, and what they got rid of."""

    def __init__(self, port: int, seconds: float, seed: int) -> None:
        self.port, self.end, self.chance = port, time.monotonic() + seconds, random.Random(seed)
        self.figures: dict[str, float] = {}

    def add(self, name: str, value: float, *, most: bool = False) -> None:
        now = self.figures.get(name, 0)
        self.figures[name] = max(now, value) if most else now + value

    async def send_endlessly(self, name: str, head: bytes, parts: Callable[[], bytes]) -> None:
        """One connection after the other, each until the server has had enough; pauses of none."""
        while time.monotonic() < self.end:
            taken = 0
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head)
                while time.monotonic() < self.end and taken < 4 * MOST_TAKEN and not reader.at_eof():
                    part = parts()
                    writer.write(part)
                    await writer.drain()
                    taken += len(part)
                    await asyncio.sleep(0)
                writer.transport.abort()
            except OSError:
                pass
            self.add(f"{name}_connections", 1)
            self.add(f"{name}_mib", taken / 2**20)
            self.add(f"{name}_most_taken", taken, most=True)
            await asyncio.sleep(0.01)

    async def hold_half_open(self) -> None:
        """A head that goes on by a byte a second, on a new connection when the server ends it."""
        while time.monotonic() < self.end:
            begun = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /healthz HTTP/1.1\r\nX-A: ")
                while time.monotonic() < self.end and not reader.at_eof():
                    writer.write(b"b")
                    await writer.drain()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(100), 1)
                writer.transport.abort()
            except OSError:
                pass
            self.add("half_open_connections", 1)
            self.add("half_open_longest_seconds", time.monotonic() - begun, most=True)
            await asyncio.sleep(0.2)

    async def ask(self, name: str, method: str, path: str, body: bytes = b"") -> None:
        """Whole requests with the key."""
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        while time.monotonic() < self.end:
            begun = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + body)
                status = (await asyncio.wait_for(reader.read(12), self.end + PATIENCE - begun))[9:]
                writer.transport.abort()
                self.add(f"{name}_answers", bool(status))
                self.add(f"{name}_errors", status >= b"500")
            except OSError:  # ended for a newer connection
                pass
            self.add(f"{name}_slowest_seconds", time.monotonic() - begun, most=True)
            await asyncio.sleep(0.05)

    async def run(self, *clients: Coroutine[Any, Any, None]) -> None:
        await asyncio.gather(*clients)


def header_line(flood: Flood) -> bytes:
    return b"X-%d: " % flood.chance.getrandbits(32) + b"b" * 16_000 + b"\r\n"


def heads(flood: Flood) -> list[Awaitable[None]]:
    """Heads, and trailers, without an end."""
    chunked = b"POST /v1/forecast HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    first, line = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n", lambda: header_line(flood)
    return [
        *(flood.send_endlessly("heads", first, line) for _ in range(PARALLEL)),
        *(flood.send_endlessly("trailers", chunked + b"0\r\n", line) for _ in range(2)),
        *(flood.send_endlessly("small_headers", first, lambda: b"a: b\r\n" * 2000) for _ in range(2)),
    ]


def bodies(flood: Flood) -> list[Awaitable[None]]:
    """Bodies without an end, and whole ones of a mebibyte that become much more when they are unpacked."""
    first = f"POST /v1/windows HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n".encode()
    first += b"Content-Type: application/json\r\n"
    long, chunks = first + b"Content-Length: 999999999999\r\n\r\n", first + b"Transfer-Encoding: chunked\r\n\r\n"
    lists, objects, texts = b"[" + b"[]," * 349_000 + b"[]]", b"[" + b"{}," * 349_000 + b"[]]", b'"' + b"a" * 12_000
    bombs = [b'{"x":[%s]}' % part for part in (lists, objects, b"[" + texts + b'"' + b',""' * 60_000 + b"]")]
    return [
        *(flood.send_endlessly("bodies", long, lambda: b" " * 65_536) for _ in range(PARALLEL)),
        *(flood.send_endlessly("bodies", chunks, lambda: b"10000\r\n" + b" " * 65_536 + b"\r\n") for _ in range(2)),
        *(flood.send_endlessly("chunks", chunks, lambda: b"1\r\n \r\n" * 4_000) for _ in range(2)),
        *(flood.ask("unpacked", "POST", "/v1/windows", bombs[number % 3]) for number in range(96)),
    ]


def readers(flood: Flood) -> list[Awaitable[None]]:
    """Visits of the page, which ask for what a million answers were worth."""
    return [flood.ask("scores", "GET", path) for path in ["/v1/scores"] * 4 + ["/v1/prices"]]


KINDS = {"heads": heads, "bodies": bodies, "answers": readers}


def flooded(port: int, pid: int, seconds: float, seed: int) -> dict[str, object]:
    """Each kind of flood for so long, all of them next to `HALF_OPEN` half heads."""
    found: dict[str, object] = {}
    argv = [sys.executable, __file__, str(port), str(pid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:

        def end_phase() -> dict[str, float]:
            watcher.stdin.write("\n")
            watcher.stdin.flush()
            return json.loads(watcher.stdout.readline())

        while "mib" not in (idle := end_phase()):
            time.sleep(0.2)
        for kind, clients in KINDS.items():
            flood, before = Flood(port, seconds, seed), (cpu_seconds(pid), time.monotonic())
            asyncio.run(flood.run(*clients(flood), *(flood.hold_half_open() for _ in range(HALF_OPEN))))
            seen = end_phase()
            share = (cpu_seconds(pid) - before[0]) / (time.monotonic() - before[1])
            flood.figures |= {"cores_of_server": share, "above_idle_mib": seen.pop("mib") - idle["mib"]}
            flood.figures |= {f"healthz_{name}": value for name, value in seen.items()}
            found[kind] = {name: round(value, 2) for name, value in sorted(flood.figures.items())}
    return found | {"idle_mib": round(idle["mib"])}


def measured(seconds: float, answers: int, seed: int, folder: Path) -> dict[str, object]:
    """Flood two servers, one of which may open few files."""
    began, runs, found = time.monotonic(), folder / "runs", {}
    runs.mkdir()
    make_model(runs)
    write_answers(runs / ".models" / "answers" / "main", answers, seed)
    with serving(runs, 0) as many, serving(runs, FEW_FILES) as few:
        found["server"] = flooded(*many(), seconds, seed)
        found[f"server_with_{FEW_FILES}_files"] = flooded(*few(), seconds, seed)
    return {"answers": answers, **found, "seconds": round(time.monotonic() - began, 1)}


def wrong(found: dict[str, Any], most_seconds: float) -> bool:
    """Whether a server took too much memory or time, did not answer, or was not flooded at all."""
    servers = [part for part in found.values() if isinstance(part, dict)]
    return any(_is_wrong(server, most_seconds) for server in servers) or len(servers) != 2


def _is_wrong(server: dict[str, Any], most_seconds: float) -> bool:
    floods = [server[kind] for kind in KINDS]
    spoiled = any(
        flood["above_idle_mib"] > MOST_MIB
        or flood["healthz_slowest"] >= most_seconds
        or flood["healthz_failed"]
        or flood["half_open_longest_seconds"] > MOST_OPEN_SECONDS
        or any(value for name, value in flood.items() if name.endswith("errors"))
        or any(value > MOST_TAKEN for name, value in flood.items() if name.endswith("most_taken"))
        for flood in floods
    )
    worked = (
        server["heads"]["heads_mib"] and server["bodies"]["unpacked_answers"] and server["answers"]["scores_answers"]
    )
    return bool(spoiled or not worked or not all(flood["healthz_asked"] for flood in floods))


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]))
