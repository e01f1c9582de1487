"""What a user implements to bring an agent: the workflow protocols. No torch, no SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.scoring import Answer

Reward: TypeAlias = "float | int | bool | Mapping[str | int, float] | Answer | None"
"""What `run` may return: a number for the whole episode, `{interaction id or turn index: number}`, or
None (the task's scorer decides). numpy scalars count as numbers. An `Answer` is None with the answer to judge."""


class Workflow(Protocol):
    """Any object with `run(data, **extra_kwargs)`, sync or async; a plain function works too.

    Injected as far as the signature accepts them: `base_url`, `api_key`, `http_client`, `record_id`, `is_eval`.

        class MathAgent:
            async def run(self, data, *, base_url, api_key, http_client, **_):
                client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
                reply = await client.chat.completions.create(model="default", messages=data["messages"])
                return float(reply.choices[0].message.content.strip() == data["answer"])
    """

    def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        """Run one episode and return its `Reward` (or an awaitable of it)."""
        ...
