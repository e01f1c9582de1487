"""JSON-RPC requests to an MCP server that is a process of this machine, over its standard input and output."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_core.errors import DeliveryUnknownError, InvalidResultError
from agentrl_mcp.process import Launch, ServerProcess
from agentrl_mcp.rpc import (
    Answer,
    Inquire,
    LinkLostError,
    answer_inquiry,
    message_of,
    notification_bytes,
    request_bytes,
    result_in,
)

logger = logging.getLogger(__name__)

_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_REPORT_S = 2.0
"""Longest wait for the report how a process ended."""


class StdioLink:
    """Requests to one process; several may be under way."""

    def __init__(self, name: str, most_bytes: int, on_notification: Callable[[str], None]) -> None:
        self.version = ""
        self._name, self._most_bytes, self._on_notification = name, most_bytes, on_notification
        self._process: ServerProcess
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._inquire: dict[int, Inquire] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._written = 0
        """Bytes that were written so far."""
        self._ends: dict[int, int] = {}
        """Request under way -> number of bytes that were written up to its end."""
        self.hung = ""
        """Reason for which the process was given up; empty while it works."""
        self.heard_at = 0.0
        """Time of the event loop at which the process said something last."""
        self._unread = ""
        """Fault of the last line that could not be read, for the message about an answer that does not come."""

    @classmethod
    async def start(cls, launch: Launch, *, most_bytes: int, on_notification: Callable[[str], None]) -> StdioLink:
        """Start a process and return the link to it."""
        link = cls(launch.name, most_bytes, on_notification)
        link._process = await ServerProcess.start(
            launch, most_bytes=most_bytes, on_line=link._read, on_end=link._end_waits
        )
        return link

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, as far as is known."""
        return self._process.is_alive and not self.hung

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - for HTTP
        timeout_s: float,
        inquire: Inquire | None = None,
    ) -> Answer:
        """Send a request, as `Link.request` says."""
        if not self.is_alive:
            raise await self._lost(sent=False)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        if inquire is not None:
            self._inquire[number] = inquire
        self._write(request_bytes(number, method, params))
        self._ends[number] = self._written
        try:
            async with asyncio.timeout(timeout_s):
                return result_in(await answer)
        except TimeoutError:
            self._cancel(number)
            unread = f"; {self._unread}" if self._unread else ""
            raise DeliveryUnknownError(
                f"{self._name}: no answer to {method} within {timeout_s:.3g} s{unread}"
            ) from None
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        except LinkLostError as error:
            raise await self._lost(sent=error.sent) from None
        except ValueError as error:
            raise InvalidResultError(f"{self._name}: its response is {error}") from None
        finally:
            del self._waiting[number], self._ends[number]
            self._inquire.pop(number, None)

    async def _lost(self, *, sent: bool) -> LinkLostError:
        if not self.hung:
            await self._process.reported(_REPORT_S)
        return LinkLostError(self.hung or self._process.describe_end(), sent=sent)

    def _write(self, line: bytes) -> None:
        self._process.write(line)
        self._written += len(line) + 1

    def give_up(self, reason: str) -> None:
        """Fail the requests under way, because the process hangs; what it has not read was not sent.

        `close` then ends the process.
        """
        self.hung = reason
        read = self._written - self._process.unread_bytes()
        for number, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_exception(LinkLostError(reason, sent=self._ends[number] <= read))

    def _cancel(self, number: int) -> None:
        params = {"requestId": number, "reason": "no longer needed"}
        self._write(notification_bytes("notifications/cancelled", params))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._write(notification_bytes(method, params))

    async def close(self) -> None:
        """End the process and everything that it started."""
        for task in self._answering:
            task.cancel()
        await self._process.end()

    def _read(self, line: bytes) -> None:
        """Handle a line of the server."""
        self.heard_at = asyncio.get_running_loop().time()
        if len(line) > self._most_bytes:
            self._fail_one(line, InvalidResultError(f"{self._name}: a line has more than {self._most_bytes} bytes"))
            return
        if not line.strip():
            return
        try:
            message = message_of(line)
        except ValueError as error:
            self._fail_one(line, InvalidResultError(f"{self._name}: wrote a line that is {error}"))
            return
        number = message.get("id")
        if "method" not in message:
            waiting = self._waiting.get(number) if isinstance(number, int) else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif number is None:
            self._on_notification(str(message["method"]))
        else:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _fail_one(self, line: bytes, error: Exception) -> None:
        """Fail the request that an unreadable line answers: the one whose id it has, or the only one under way.

        Otherwise it may be output of a library that prints: the line is dropped, and requests wait on.
        """
        number = 0
        if found := _ID.search(line[:200]):
            number = int(found[1])
        elif line.startswith(b"{") and len(self._waiting) == 1:
            (number,) = self._waiting
        if (waiting := self._waiting.get(number)) is not None and not waiting.done():
            waiting.set_exception(error)
        else:
            self._unread = str(error).partition(": ")[2]
            logger.warning("%s", error)

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Answer a request of the server, for the oldest call: it does not say which one it belongs to."""
        inquire = next(iter(self._inquire.values()), None)
        self._write(await answer_inquiry(message, inquire))

    def _end_waits(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(LinkLostError("", sent=True))
