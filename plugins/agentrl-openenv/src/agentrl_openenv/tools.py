"""The tool server `openenv` and its scorer: an environment's tools for any agent, and the reward for what it did."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.api.tools import ToolResult, ToolSpec
from agentrl_core.errors import EpisodeError, ToolServerError
from agentrl_openenv.session import RefusedActionError, Session, text_of

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest
    from agentrl_core.api.tools import Isolation, ToolEpisode

_KEPT = 10_000
"""Number of episodes whose rewards are kept for the scorer."""
_rewards: OrderedDict[str, float] = OrderedDict()
"""Record id -> reward of the environment."""


class OpenEnvTools:
    """Offers the tools of an OpenEnv environment; each episode has its own session, and so an environment of its own.

    `url`: address of the server, `http://host:port`. `timeout_s`: longest time in seconds of one step. A row's field
    `reset` has options of the environment's `reset`, such as `{seed: 1}`.
    """

    isolation: Isolation = "session"

    def __init__(self, *, url: str, timeout_s: float = 60.0) -> None:
        self._url, self._timeout_s = url, timeout_s

    async def start(self) -> None:
        """Open a session and end it; raises `ToolServerError` if there is no server."""
        session = Session(self._url, self._timeout_s)
        try:
            await session.open()
        except EpisodeError as error:
            raise ToolServerError(str(error)) from error
        await session.close()

    async def open(self, episode: ToolEpisode) -> OpenEnvToolSession:
        """Open the episode's environment."""
        session = Session(self._url, self._timeout_s)
        await session.open()
        try:
            await session.reset(**dict(episode.data.get("reset") or {}))
        except BaseException:
            await session.close()
            raise
        return OpenEnvToolSession(session, episode.record_id)

    async def close(self) -> None:
        """Do nothing: sessions end with their episodes."""


class OpenEnvToolSession:
    """Tools of one episode; each call is a step of the environment."""

    def __init__(self, session: Session, record_id: str) -> None:
        self._session, self._record_id = session, record_id

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the environment's tools."""
        return await list_tools(self._session)

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool as a step of the environment."""
        self._session.timeout_s = timeout_s
        return await call_tool(self._session, name, arguments)

    async def close(self) -> None:
        """Keep the reward for the scorer, and end the session."""
        _rewards[self._record_id] = self._session.total
        while len(_rewards) > _KEPT:
            _rewards.popitem(last=False)
        await self._session.close()


async def list_tools(session: Session) -> list[ToolSpec]:
    """Return the tools of a session's environment."""
    try:
        found = await session.step({"type": "list_tools"})
    except RefusedActionError:
        return []  # an environment whose actions are no tool calls
    tools = found.data.get("tools") or ()
    return [
        ToolSpec(name=tool["name"], description=tool.get("description") or "", parameters=_schema(tool))
        for tool in tools
    ]


async def call_tool(session: Session, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Call a tool as a step; errors of the call are for the model."""
    if session.done:
        return ToolResult.of_text("The episode is over.", is_error=True)
    try:
        found = await session.step({"type": "call_tool", "tool_name": name, "arguments": dict(arguments)})
    except RefusedActionError as error:
        return ToolResult.of_text(str(error), is_error=True)
    if failure := found.data.get("error"):
        message = failure.get("message") if isinstance(failure, dict) else failure
        return ToolResult.of_text(str(message), is_error=True)
    return _result(found.data)


def score(request: ScoreRequest) -> float:
    """Return the sum of the rewards that the environment gave in the episode."""
    reward = _rewards.pop(request.record.id, None)
    if reward is None:
        raise EpisodeError("no_score", "no session of the tool server 'openenv' was open in this episode")
    return reward


def _schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tool.get("input_schema") or tool.get("inputSchema") or {}
    return {"type": "object", "properties": {}, **found}


def _result(data: Mapping[str, Any]) -> ToolResult:
    """Return the result of a tool: text parts of MCP's shape, or any JSON value."""
    result = data.get("result", text_of(data))
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        parts = [
            part.get("text") for part in result["content"] if isinstance(part, dict) and part.get("type") == "text"
        ]
        text = "\n".join(map(str, parts))
        return ToolResult.of_text(text, is_error=bool(result.get("is_error") or result.get("isError")))
    if isinstance(result, dict) and set(result) >= {"data"} and isinstance(result["data"], str):
        return ToolResult.of_text(result["data"], is_error=bool(result.get("is_error")))
    return ToolResult.of_text(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))
