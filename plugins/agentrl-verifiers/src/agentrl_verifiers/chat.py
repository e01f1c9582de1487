"""Harness `agentrl_chat`: verifiers' chat loop with MCP tools, without a process of its own for each episode.

It does what the harness `null` of verifiers does: it asks the model, runs the tool calls one after the other, and ends
with a reply that has none, or when the context is full. Starting `null` takes seconds of CPU time per episode.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1 import Harness, HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message, is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]


class ChatHarnessConfig(HarnessConfig):
    """Options of the harness; it has none of its own."""


class ChatHarness(Harness[ChatHarnessConfig]):
    """Runs the chat loop on the event loop of the environment."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,  # noqa: ARG002  (verifiers' protocol)
        runtime: Any,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Run the loop to its end."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(message_to_wire(message) for message in prompt or ())
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, verify=False))  # noqa: S113, S501  (this machine)
            # verifiers' openai takes a client of httpx, the types are those of a later one
            connection: Any = http
            client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, http_client=connection)
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            gate = (http, tool_interception_url, secret) if tool_interception_url else None
            wanted: dict[str, Any] = {"tools": tools} if tools else {}
            while True:
                try:
                    reply = await client.chat.completions.create(model=ctx.model, messages=messages, **wanted)  # type: ignore[arg-type]
                except APIStatusError as error:
                    if is_context_overflow(error):
                        break
                    return ProgramResult(exit_code=1, stdout="", stderr=str(error))
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                calls: list[Any] = list(message.tool_calls)
                for call in calls:
                    content = await _denied(gate, call) if gate else None
                    if content is None:
                        content = await _called(call, connections, dispatch)
                    messages.append(
                        bound_tool_message(
                            {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": content}
                        )
                    )
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _called(call: Any, connections: dict[str, Any], dispatch: dict[str, tuple[str, str]]) -> Any:
    """Return a tool's result as content of a message; what the model did wrong is an answer to the model."""
    name = call.function.name
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except json.JSONDecodeError as error:
        return f"error: the arguments are no JSON ({error}); call the tool again with valid JSON"
    if not isinstance(arguments, dict):
        return f"error: the arguments must be a JSON object, found {type(arguments).__name__}"
    if name not in dispatch:
        return f"error: unknown tool {name!r}"
    return await call_mcp(connections, dispatch, name, arguments)


async def _denied(gate: tuple[httpx.AsyncClient, str, str], call: Any) -> Any:
    """Ask the environment's hooks whether a call may run; return the content that replaces its result, or None."""
    http, url, secret = gate
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except json.JSONDecodeError:
        arguments = call.function.arguments
    body = {"tool_call_id": call.id, "name": call.function.name, "arguments": arguments}
    response = await http.post(url, headers={"Authorization": f"Bearer {secret}"}, json=body)
    response.raise_for_status()
    decision = response.json()
    if decision["action"] == "stop":
        raise RuntimeError(decision["reason"])
    return decision["message"]["content"] if decision["action"] == "deny" else None
