"""One client's connection: cancels the answer that it waits for when the client leaves.

ASGI only tells that to who waits for it, which takes a second task for every request: 60 µs of CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

CONNECTION = "agentrl.connection"
"""Key of a request's scope: the `Connection` that it came by."""


class Connection(HttpToolsProtocol):
    """uvicorn's side of a connection. Its requests are answered one at a time, pipelined ones too."""

    _answering: asyncio.Task[Any] | None = None
    _gone = False

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the request to be answered is here: reading it waits for nobody."""
        return not self.cycle.more_body

    @contextmanager
    def answering(self) -> Iterator[bool]:
        """Cancel what the current task does inside when the client leaves; yields whether it has left already."""
        self._answering = asyncio.current_task()
        try:
            yield self._gone
        except asyncio.CancelledError:
            if not self._gone:
                raise
        finally:
            self._answering = None

    def on_message_begin(self) -> None:
        """Let the request know its connection."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # a scope may have keys of the server

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the running answer: nobody waits for it any more."""
        super().connection_lost(exc)
        self._gone = True
        if self._answering is not None:
            self._answering.cancel()
