"""Example agents for word problems, written with the Anthropic SDK: one answer, or a calculator.

    workflow: agentrl_anthropic.math_agent.MathToolAgent

A task has `messages` and the `answer`, a number. The agents run inline, in subprocess workers and in other
interpreters, where agentrl need not be installed. If `run` gets no `base_url` or `api_key`, the client reads them from
the environment.
"""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic

from agentrl_examples.calculator import OPERATIONS, calculate, same_number

_TOOL: Any = {
    "name": "calculator",
    "description": "Do one step of arithmetic with two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {
            "operation": {"type": "string", "enum": list(OPERATIONS)},
            "a": {"type": "number"},
            "b": {"type": "number"},
        },
        "required": ["operation", "a", "b"],
    },
}


def connect(
    base_url: str | None = None, api_key: str | None = None, http_client: Any = None, **_others: Any
) -> AsyncAnthropic:
    """Return a client of the episode's policy; closing it does not close the episode's `http_client`."""
    # With None the client reads ANTHROPIC_BASE_URL, which has no /v1 at its end, and ANTHROPIC_API_KEY.
    return AsyncAnthropic(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)


class MathAgent:
    """Asks once; the reward is 1.0 if the last number of the reply is the answer."""

    def __init__(self, *, model: str = "default", max_tokens: int = 1024) -> None:
        self.model = model
        self.max_tokens = max_tokens

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer one task."""
        async with connect(**extra_kwargs) as client:
            reply = await client.messages.create(
                model=self.model, max_tokens=self.max_tokens, **_conversation(data["messages"])
            )
        return float(same_number(_text(reply), str(data["answer"])))


class MathToolAgent:
    """Offers a calculator until the model answers without using it, for at most `max_turns` LLM calls."""

    def __init__(self, *, model: str = "default", max_tokens: int = 1024, max_turns: int = 8) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.max_turns = max_turns

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer one task."""
        asked = {**_conversation(data["messages"]), "tools": [_TOOL]}
        messages = asked["messages"]
        async with connect(**extra_kwargs) as client:
            for _ in range(self.max_turns):
                reply = await client.messages.create(model=self.model, max_tokens=self.max_tokens, **asked)
                calls = [block for block in reply.content if block.type == "tool_use"]
                if not calls:
                    return float(same_number(_text(reply), str(data["answer"])))
                messages.append({"role": "assistant", "content": reply.content})
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": _use_tool(call.input)} for call in calls
                ]
                messages.append({"role": "user", "content": results})
        return 0.0


def _conversation(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a task's messages as arguments of the Messages API, which has system messages in a field of their own."""
    said: dict[str, Any] = {"messages": [message for message in messages if message["role"] != "system"]}
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    return {**said, "system": system} if system else said


def _text(reply: Any) -> str:
    return "".join(block.text for block in reply.content if block.type == "text")


def _use_tool(arguments: Any) -> str:
    try:
        return calculate(**arguments)
    except TypeError as error:
        return f"error: {error}"
