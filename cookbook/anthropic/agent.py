"""An agent written with the Anthropic SDK for the quickstart's task; nothing in it knows of training."""

import json
import sys
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import TOOLS, Quest

MOVE = {
    "name": TOOLS[0]["function"]["name"],
    "description": TOOLS[0]["function"]["description"],
    "input_schema": TOOLS[0]["function"]["parameters"],
}


class Walker:
    """Calls `move` until the thing is found or the calls are used up."""

    def __init__(self, *, max_tokens: int = 24) -> None:
        self.max_tokens = max_tokens
        self.client = AsyncAnthropic(api_key="unused while training")

    async def walk(self, task: dict[str, Any]) -> str:
        """Walk to one thing, and return what the last move was told."""
        quest, told = Quest(task["sideways"], task["up"]), ""
        messages = list(task["messages"])
        while not quest.finished:
            reply = await self.client.messages.create(
                model="claude-haiku-4-5", max_tokens=self.max_tokens, messages=messages, tools=[MOVE]
            )
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = []
            for call in calls:
                told = quest.move(json.dumps(call.input))
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": told})
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        return told
