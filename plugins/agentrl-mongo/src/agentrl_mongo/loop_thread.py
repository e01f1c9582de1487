"""An event loop on a thread of its own, for clients that are bound to one loop while their callers have many."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for callers on any loop and thread; a caller that is cancelled cancels its coroutine."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._submitting = threading.Lock()
        self._stopping = False
        # A daemon: a store that nobody closed must not keep its process from ending.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the thread's loop and return its result; `RuntimeError` once the thread is stopping."""
        with self._submitting:
            if self._stopping:
                work.close()
                raise RuntimeError("the loop is stopping")
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(running)

    async def stop(self) -> None:
        """Cancel what still runs, end the loop and wait for the thread."""
        with self._submitting:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class _Loop(asyncio.SelectorEventLoop):
    """Closes the sockets of its clients at its end, at the latest.

    `AsyncMongoClient` does not close the socket of an attempt to connect that it cancels, as its `close` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sockets: set[socket.socket] = set()

    def sock_connect(self, sock: socket.socket, address: Any) -> Coroutine[Any, Any, None]:
        """Connect a socket, and remember it while it is open."""
        # Remembered before the coroutine begins, because a task may be cancelled before its first step.
        self._sockets = {sock, *(kept for kept in self._sockets if kept.fileno() >= 0)}
        return super().sock_connect(sock, address)

    def close(self) -> None:
        """Close the loop, then the sockets."""
        super().close()
        for sock in self._sockets:
            sock.close()
