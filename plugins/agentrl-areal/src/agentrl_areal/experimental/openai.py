"""AReaL's place of `ArealOpenAI`."""

from __future__ import annotations

from typing import Any

from agentrl_areal.elsewhere import explain

_CLIENT = (
    "write `async def run(self, data, *, base_url, api_key, http_client)` with openai.AsyncOpenAI and return "
    "{response.id: reward}; turn_discount and export_style are those of rollout.agent"
)
_ELSEWHERE = dict.fromkeys(
    ("ArealOpenAI", "InteractionWithTokenLogpReward", "OpenAIProxyClient", "OpenAIProxyWorkflow"), _CLIENT
)


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
