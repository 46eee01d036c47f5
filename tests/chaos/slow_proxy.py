"""A TCP proxy that lets little through, so that uploads last long enough to be cut off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK_BYTES = 16 * 2**10


class Proxy:
    """Sends what clients send on to `target` (http://HOST:PORT), at `rate` bytes a second per connection."""

    def __init__(self, target: str, rate: float) -> None:
        self._target, self._rate = urlsplit(target), rate
        self.sent = 0
        """Bytes of all clients so far."""
        self.connections = 0
        """Of clients that are still served: of one that was killed, what it had sent may be on its way."""
        self.address = ""

    async def serve(self, ready: threading.Event) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await server.serve_forever()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
            pipes = self._pipe(reader, back, self._rate), self._pipe(there, writer, 0.0)
            await asyncio.gather(*pipes, return_exceptions=True)
        finally:
            self.connections -= 1

    async def _pipe(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, rate: float) -> None:
        try:
            while chunk := await source.read(CHUNK_BYTES):
                target.write(chunk)
                await target.drain()
                if rate:
                    self.sent += len(chunk)
                    await asyncio.sleep(len(chunk) / rate)
        finally:
            target.close()


@contextmanager
def between(target: str, rate: float) -> Iterator[Proxy]:
    """A proxy in a thread, while the block runs."""
    proxy, ready = Proxy(target, rate), threading.Event()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(proxy.serve(ready))

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
