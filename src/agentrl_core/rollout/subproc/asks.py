"""Answer an agent in a worker that uses the run's tools: check its requests, run them, send back the results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import EnvironmentLostError
from agentrl_core.rollout.subproc.inside.telling import message_of, tell
from agentrl_core.rollout.subproc.worker_messages import ProtocolError

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools, ShownCall

_MOST = 1024
"""Requests of one agent that may wait at the same time."""
_GIVEN: Mapping[str, Mapping[str, type]] = {
    "specs": {},
    "as_openai": {},
    "as_openai_responses": {},
    "as_anthropic": {},
    "call": {"name": str, "arguments": str, "id": str, "messages": list},
    "call_all": {"calls": list, "messages": list},
    "mark": {"word": str},
}
"""Methods that an agent may ask for -> names and types of what it gives."""


class Asks:
    """Requests of the agent of one episode; `number` is the episode's, `write` sends a message to its worker."""

    def __init__(
        self,
        number: str,
        tools: EpisodeTools | None,
        add_mark: Callable[[str], None],
        write: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        self._number, self._tools, self._add_mark, self._write = number, tools, add_mark, write
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: Mapping[str, Any]) -> None:
        """Begin to answer a request; `ProtocolError` if no worker sends it."""
        call, method, given = (message.get(name) for name in ("call", "method", "given"))
        fields = _GIVEN.get(method) if isinstance(method, str) else None
        if not isinstance(call, int) or not isinstance(given, dict) or fields is None:
            raise ProtocolError(f"asked for something that no agent can ask for: {tell(repr(message), 100)}")
        if given.keys() != fields.keys() or not all(isinstance(given[name], kind) for name, kind in fields.items()):
            raise ProtocolError(f"asked for '{method}' with {tell(repr(given), 100)}; expected {', '.join(fields)}")
        if len(self._tasks) >= _MOST:
            raise ProtocolError(f"asked for tools {_MOST} times at once")
        task = asyncio.create_task(self._answer(call, str(method), given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: int, method: str, given: Mapping[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            reply = {"value": await self._value(method, given)}
        except Exception as error:  # noqa: BLE001 - any error is the agent's to see
            server = error.server if isinstance(error, EnvironmentLostError) else ""
            reply = {"error": [type(error).__name__, message_of(error), server]}
        told = {"op": "told", "id": self._number, "call": call, **reply}
        # Shielded: a message that ends half-way would make all later ones unreadable.
        await asyncio.shield(asyncio.ensure_future(self._write(told)))

    async def _value(self, method: str, given: Mapping[str, Any]) -> Any:
        if method == "mark":
            return self._add_mark(given["word"])
        if self._tools is None:
            raise LookupError("the config lists no tools; add servers under tools.servers")
        if method == "call":
            shown = await self._tools.call(
                given["name"], given["arguments"], id=given["id"], messages=given["messages"]
            )
            return _shown(shown)
        if method == "call_all":
            return await self._tools.call_all({"tool_calls": given["calls"]}, messages=given["messages"])
        if method == "specs":
            return [attrs.asdict(spec, recurse=False) for spec in await self._tools.specs()]
        return await getattr(self._tools, method)()

    async def close(self) -> None:
        """Cancel the requests that still run, after the end of the episode."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


def _shown(shown: ShownCall) -> dict[str, Any]:
    return {
        "id": shown.id,
        "name": shown.name,
        "outcome": shown.outcome.value,
        "message": shown.message,
        "content": [dict(part) for part in shown.result.content],
        "is_error": shown.result.is_error,
        "structured": shown.result.structured,
    }
