"""The quickstart's agent with a tool that takes 200 ms, as one that asks a server would."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI
from quest import TOOLS, Quest

TOOL_S = 0.2


class SlowQuestAgent:
    """Calls `move` until the thing is found or the calls are used up, and waits for each call."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        quest = Quest(data["sideways"], data["up"])
        messages = list(data["messages"])
        while not quest.finished:
            reply = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                await asyncio.sleep(TOOL_S)
                result = quest.move(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return quest.reward
