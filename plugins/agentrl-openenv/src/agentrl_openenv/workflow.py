"""The workflow `openenv`: the policy acts in an OpenEnv environment, which gives the reward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.errors import EnvironmentLostError
from agentrl_openenv.asking import ContextFullError, Policy
from agentrl_openenv.session import RefusedActionError, Session, shown_url, text_of
from agentrl_openenv.tools import call_tool, list_tools

if TYPE_CHECKING:
    import httpx2


class OpenEnvWorkflow:
    """Plays one episode per task, each in its own session of the server at `url`.

    `action_field`: field of the environment's action that takes the policy's reply as text, such as `message`. None:
    the policy calls the environment's tools, and an episode ends at a reply without a call.
    `observation_field`: field of an observation that the policy is shown; None for all of it, as JSON.
    `system_prompt`: text before everything else. `max_turns`: largest number of replies. `timeout_s`: longest time in
    seconds of one step. `reward`: the `sum` of the steps' rewards, or the `last` one.
    A row's field `reset` has options of the environment's `reset`, such as `{seed: 1}`.
    """

    def __init__(
        self,
        *,
        url: str,
        action_field: str | None = None,
        observation_field: str | None = None,
        system_prompt: str = "",
        max_turns: int = 16,
        timeout_s: float = 60.0,
        reward: Literal["sum", "last"] = "sum",
    ) -> None:
        if max_turns < 1:
            raise ValueError("max_turns: expected a number of at least 1")
        self._url, self._timeout_s, self._max_turns, self._reward = url, timeout_s, max_turns, reward
        self._action_field, self._observation_field = action_field, observation_field
        self._system_prompt = system_prompt

    async def run(
        self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: httpx2.AsyncClient
    ) -> float:
        """Play one episode; raises `EnvironmentLostError` if the server fails."""
        policy = Policy(base_url=base_url, api_key=api_key, http_client=http_client)
        session = Session(self._url, self._timeout_s)
        await session.open()
        try:
            messages = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
            play = self._play_tools if self._action_field is None else self._play_text
            try:
                await play(data, session, policy, messages)
            except ContextFullError:
                pass  # the policy has used up its context: the rewards so far count
            except RefusedActionError as error:
                raise EnvironmentLostError(
                    f"OpenEnv server {shown_url(self._url)}: {error}", server="openenv"
                ) from error
            return session.total if self._reward == "sum" else session.last
        finally:
            await session.close()

    async def _play_text(
        self, data: Mapping[str, Any], session: Session, policy: Policy, messages: list[dict[str, Any]]
    ) -> None:
        """Send replies as actions, and observations as messages of the user."""
        seen = await session.reset(**dict(data.get("reset") or {}))
        for _ in range(self._max_turns):
            messages.append({"role": "user", "content": text_of(seen.data, self._observation_field)})
            reply = await policy.chat(messages)
            messages.append(reply)
            seen = await session.step({str(self._action_field): reply.get("content") or ""})
            if seen.done:
                return

    async def _play_tools(
        self, data: Mapping[str, Any], session: Session, policy: Policy, messages: list[dict[str, Any]]
    ) -> None:
        """Send tool calls as actions, and their results as tool messages; the task's own messages come first."""
        await session.reset(**dict(data.get("reset") or {}))
        tools = [
            {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                              "parameters": dict(tool.parameters)}}
            for tool in await list_tools(session)
        ]  # fmt: skip
        if not tools:
            where = f"OpenEnv server {shown_url(self._url)} has no tools"
            raise EnvironmentLostError(f"{where}; name the field of its actions in action_field", server="openenv")
        messages.extend(data["messages"])
        for _ in range(self._max_turns):
            reply = await policy.chat(messages, tools=tools)
            messages.append(reply)
            if not reply.get("tool_calls"):
                return
            for call in reply["tool_calls"]:
                content = await _called(session, call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            if session.done:
                return


async def _called(session: Session, function: Mapping[str, Any]) -> str:
    """Return the result of a call that the policy wrote, whatever it wrote."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except json.JSONDecodeError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    result = await call_tool(session, function["name"], arguments)
    return f"error: {result.text}" if result.is_error else result.text
