"""One chat completion over plain HTTP, for workflows that use no SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from agentrl_core.types import Message


async def ask(
    http_client: Any, base_url: str, api_key: str, messages: Sequence[Message], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of one chat completion; `fields` are further request fields, those that are None are left out.

    `http_client` is an `AsyncClient` of httpx or httpx2. Raises `RequestError` if the gateway refuses the call.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    response = await http_client.post(
        f"{base_url}/v1/chat/completions",
        json={"model": "default", **given, "messages": list(messages)},
        headers={"authorization": f"Bearer {api_key}"},
    )
    body: dict[str, Any] = response.json()
    if response.is_error:
        error = body["error"]
        raise RequestError(response.status_code, error["code"], error["message"], param=error.get("param"))
    return body
