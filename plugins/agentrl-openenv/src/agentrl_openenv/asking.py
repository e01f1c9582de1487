"""Calls to the policy, over the episode's own address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import httpx2


class ContextFullError(Exception):
    """The conversation leaves no room for a reply."""


@attrs.frozen(kw_only=True)
class Policy:
    """The model of an episode."""

    base_url: str = attrs.field(repr=False)
    api_key: str = attrs.field(repr=False)
    http_client: httpx2.AsyncClient = attrs.field(repr=False)

    async def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Return the message that answers a chat. Raises `ContextFullError`, or `RuntimeError` for a failed call."""
        reply = await self.post("chat/completions", {"model": "default", "messages": messages, **options})
        message: dict[str, Any] = reply["choices"][0]["message"]
        return {name: value for name, value in message.items() if value is not None}

    async def post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post to a route of the gateway's API."""
        response = await self.http_client.post(
            f"{self.base_url}/v1/{route}", json=dict(body), headers={"authorization": f"Bearer {self.api_key}"}
        )
        found: dict[str, Any] = response.json()
        if response.is_success:
            return found
        error = found.get("error") or {}
        if error.get("code") == "context_length_exceeded":
            raise ContextFullError
        raise RuntimeError(f"the policy could not answer ({response.status_code}): {error.get('message')}")
