"""Agent that makes one call; it is a module of its own because a worker's start includes the import of its agent."""

from __future__ import annotations

import os
from typing import Any


class Trivial:
    """Asks the policy by the client that it is given, and returns the number of its process."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        """Make the call."""
        reply = await http_client.post(
            f"{base_url}/v1/chat/completions",
            json={"model": "default", "messages": data["messages"]},
            headers={"authorization": f"Bearer {api_key}"},
        )
        reply.raise_for_status()
        return float(os.getpid())
