"""The workflow `harbor`: a plain agent that calls tools until it answers without a call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
from attrs import validators

from agentrl_core import workflow_context
from agentrl_core.api.completions import ask
from agentrl_core.errors import ConfigError, RequestError

_TOO_LONG: Final = "context_length_exceeded"


@attrs.frozen(kw_only=True)
class HarborAgent:
    """Give the model the task's instruction and the run's tools, and let it work.

    `system_prompt`: text before the instruction. `max_turns`: largest number of replies. The episode also ends when the
    context is full or the task's `agent.timeout_sec` is over; then the verifier decides as after any other end.
    """

    system_prompt: str = ""
    max_turns: int = attrs.field(default=30, validator=validators.gt(0))
    leaves_scoring: ClassVar[bool] = True

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: Any) -> None:
        """Run one episode."""
        tools = workflow_context.get().tools
        if tools is None:
            raise ConfigError("workflow harbor: needs tools; set tools: {servers: [{use: harbor, provider: docker}]}")
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        messages: list[dict[str, Any]] = [*system, *map(dict, data["messages"])]
        offered = await tools.as_openai()
        try:
            async with asyncio.timeout(data.get("agent_timeout_s")):
                for _ in range(self.max_turns):
                    reply = await ask(http_client, base_url, api_key, messages, {"tools": offered or None})
                    message = reply["choices"][0]["message"]
                    messages.append(message)
                    if not message.get("tool_calls"):
                        return
                    messages += await tools.call_all(message, messages=messages)
                workflow_context.mark("max_turns")
        except RequestError as error:
            if error.code != _TOO_LONG:
                raise
            workflow_context.mark("context_full")
        except TimeoutError:
            workflow_context.mark("agent_timeout")
