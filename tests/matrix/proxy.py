"""TCP proxy that breaks a connection at a given byte."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal


class CuttingProxy:
    """Stands between a client and the gateway, on a thread of its own.

    `cut("up", n)` breaks the connection that carries the next request once n bytes of it were passed on;
    `cut("down", n)` once n bytes of the reply were. Later connections are left alone. `cut_all` ends all that are open.
    From `leave` until `come_back`, every connection is broken, as if the network were cut; `missed` is set by the first
    that comes meanwhile.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._armed: tuple[str, int] | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.cuts = 0
        self.missed = threading.Event()
        self._away = False
        self._thread.start()
        self._started.wait()

    def cut(self, direction: Literal["up", "down"], after: int) -> None:
        """Break the next traffic in a direction behind so many bytes."""
        self._armed = (direction, after)

    def cut_all(self) -> None:
        """Break every connection, as a client does whose process dies."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def leave(self) -> None:
        """Break every connection from now on."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()

    def come_back(self) -> None:
        """Let connections through again."""
        self._away = False

    def close(self) -> None:
        """End the thread and all connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopped.wait()
        server.close()
        self._abort_all()
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        await server.wait_closed()

    def _tasks(self) -> list[asyncio.Task]:
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    async def _leave(self) -> None:
        self.missed.clear()
        self._away = True
        self._abort_all()

    def _abort_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            writer.transport.abort()
            self.missed.set()
            return
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        both = (writer, up_writer)
        self._open.update(both)
        try:
            await asyncio.gather(self._pump("up", reader, up_writer, both), self._pump("down", up_reader, writer, both))
        finally:
            self._open.difference_update(both)

    async def _pump(self, direction, reader, writer, both) -> None:
        try:
            while data := await reader.read(65536):
                if self._armed is not None and self._armed[0] == direction:
                    after = self._armed[1]
                    if len(data) > after:
                        self._armed = None
                        self.cuts += 1
                        writer.write(data[:after])
                        await writer.drain()
                        break
                    self._armed = (direction, after - len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for one in both:
                one.close()
