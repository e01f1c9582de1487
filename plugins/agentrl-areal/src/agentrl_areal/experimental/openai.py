"""Counterpart of `areal.experimental.openai`, whose `ArealOpenAI` is replaced by an agent with AsyncOpenAI."""

from __future__ import annotations

from typing import Any

from agentrl_areal.elsewhere import explain

_CLIENT = (
    "write `async def run(self, data, *, base_url, api_key, http_client)` with openai.AsyncOpenAI and return "
    "{response.id: reward}; set turn_discount and export_style in the config's rollout.agent"
)
_ELSEWHERE = dict.fromkeys(
    ("ArealOpenAI", "InteractionWithTokenLogpReward", "OpenAIProxyClient", "OpenAIProxyWorkflow"), _CLIENT
)


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
