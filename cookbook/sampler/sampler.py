"""A custom sampler as in AgentCPM's AgentRL: `run` samples, `evaluate_record` scores; no SDK and no base URL needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agentrl_core import AsyncSampler

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import TOOLS, Quest


class QuestSampler(AsyncSampler):
    """Calls `move` until the thing is found or the calls are used up."""

    async def run(self, task: Any) -> None:
        quest = Quest(task.sideways, task.up)
        messages = list(task.messages)
        while not quest.finished:
            response = await self.create_chat_completions(messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = quest.move(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        self.record.meta_infos["quest"] = quest

    async def evaluate_record(self, record: Any) -> float:
        quest = record.meta_infos["quest"]
        half_way = quest.offset[0] == 0
        return float(quest.reward or (self.config.partial_reward if half_way else 0.0))
