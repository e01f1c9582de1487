"""Example agents for word problems, written with the OpenAI SDK: one answer, several tries, a calculator.

    workflow: agentrl_openai.math_agent.MathAgent

A task has `messages` and the `answer`, a number. The agents run inline, in subprocess workers and in other
interpreters, where agentrl need not be installed. If `run` gets no `base_url` or `api_key`, the client reads them from
the environment.
"""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from agentrl_examples.calculator import OPERATIONS, calculate, same_number

_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Do one step of arithmetic with two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": list(OPERATIONS)},
                "a": {"type": "number"},
                "b": {"type": "number"},
            },
            "required": ["operation", "a", "b"],
        },
    },
}


def connect(
    base_url: str | None = None, api_key: str | None = None, http_client: Any = None, **_others: Any
) -> AsyncOpenAI:
    """Return a client of the episode's policy; closing it does not close the episode's `http_client`."""
    # With None the client reads OPENAI_BASE_URL and OPENAI_API_KEY.
    url = f"{base_url}/v1" if base_url else None
    return AsyncOpenAI(base_url=url, api_key=api_key, http_client=http_client, max_retries=0)


class MathAgent:
    """Asks once; the reward is 1.0 if the last number of the reply is the answer."""

    def __init__(self, *, model: str = "default") -> None:
        self.model = model

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer one task."""
        async with connect(**extra_kwargs) as client:
            reply = await client.chat.completions.create(model=self.model, messages=data["messages"])
        return float(same_number(reply.choices[0].message.content or "", str(data["answer"])))


class MultiTurnMathAgent:
    """Asks up to `max_turns` times, telling the model each time that its answer is wrong, until the answer is right."""

    def __init__(self, *, model: str = "default", max_turns: int = 4) -> None:
        self.model = model
        self.max_turns = max_turns

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer one task. All tries get the reward, earlier ones less of it if `turn_discount` is below 1."""
        messages = list(data["messages"])
        async with connect(**extra_kwargs) as client:
            for _ in range(self.max_turns):
                reply = await client.chat.completions.create(model=self.model, messages=messages)
                message = reply.choices[0].message
                if same_number(message.content or "", str(data["answer"])):
                    return 1.0
                messages += [message, {"role": "user", "content": "That is not the answer. Think again."}]
        return 0.0


class MathToolAgent:
    """Offers a calculator until the model answers without using it, for at most `max_turns` LLM calls."""

    def __init__(self, *, model: str = "default", max_turns: int = 8) -> None:
        self.model = model
        self.max_turns = max_turns

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Answer one task."""
        messages = list(data["messages"])
        async with connect(**extra_kwargs) as client:
            for _ in range(self.max_turns):
                reply = await client.chat.completions.create(model=self.model, messages=messages, tools=[_TOOL])
                message = reply.choices[0].message
                if not message.tool_calls:
                    return float(same_number(message.content or "", str(data["answer"])))
                messages.append(message)
                for call in message.tool_calls:
                    messages += [{"role": "tool", "tool_call_id": call.id, "content": _use_tool(call)}]
        return 0.0


def _use_tool(call: Any) -> str:
    try:
        return calculate(**json.loads(call.function.arguments))
    except (TypeError, ValueError) as error:
        return f"error: {error}"
