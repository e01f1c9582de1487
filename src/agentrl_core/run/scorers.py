"""Run every scorer's own start-up check, so that a missing judge or sandbox shows before the first episode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.config.schema import GatewayConfig
    from agentrl_core.scorers.call import NormalizedScorer


def check_scorers(scorers: Iterable[NormalizedScorer], gateway: GatewayConfig) -> list[str]:
    """Call `check` of all scorers concurrently; return their notes, and raise the first error."""
    gateway_url = f"http://{gateway.host}:{gateway.port}" if gateway.port else None

    async def check_all() -> list[str]:
        notes = await asyncio.gather(*(scorer.check(gateway_url=gateway_url) for scorer in scorers))
        return [note for its_notes in notes for note in its_notes]

    return asyncio.run(check_all())
