"""Answers to what servers ask during a call: a function of the user's answers elicitations, or they are declined."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import attrs

from agentrl_core.api.tools import ToolEpisode
from agentrl_mcp.rpc import METHOD_NOT_FOUND, RpcError

Hook: TypeAlias = Callable[
    [ToolEpisode | None, str, Mapping[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None
]
"""`answer(episode, message, schema)`: the content of the form that `schema` describes, None to decline."""


@attrs.frozen
class Elicitation:
    """Answers of the simulated user; without a hook every elicitation is declined."""

    hook: Hook | None = None

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """Capabilities that the server is told; elicitation even without a hook, or calls fail instead of a refusal."""
        return {"elicitation": {"form": {}}}

    async def answer(self, method: str, params: Mapping[str, Any], episode: ToolEpisode | None) -> Mapping[str, Any]:
        """Return the result for a request of the server; `RpcError` refuses what agentrl does not offer."""
        if method != "elicitation/create":
            raise RpcError(METHOD_NOT_FOUND, f"agentrl does not offer {method}")
        schema = params.get("requestedSchema")
        if self.hook is None or not isinstance(schema, Mapping):
            return {"action": "decline"}
        told = self.hook(episode, str(params.get("message", "")), schema)
        content = await told if inspect.isawaitable(told) else told
        return {"action": "decline"} if content is None else {"action": "accept", "content": dict(content)}

    async def answer_all(self, questions: Any, episode: ToolEpisode | None) -> dict[str, Mapping[str, Any]]:
        """Return the results for the requests that an `input_required` result holds, by their keys."""
        if not isinstance(questions, Mapping):
            raise RpcError(0, "the server's `inputRequests` is no object")
        found = await asyncio.gather(
            *(
                self.answer(str(item.get("method")), item.get("params") or {}, episode)
                if isinstance(item, Mapping)
                else self.answer("", {}, episode)
                for item in questions.values()
            )
        )
        return dict(zip(questions, found, strict=True))
