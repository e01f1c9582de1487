"""The scorers that a run's tasks name: built before it starts, and asked whether they can score."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from agentrl_core.options import construct
from agentrl_core.scorers.call import normalize_scorer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agentrl_core.config.schema import GatewayConfig
    from agentrl_core.registry import Registry
    from agentrl_core.scorers.call import NormalizedScorer


def build_scorer(registry: Registry, name: str, *, base_dir: Path) -> NormalizedScorer:
    """Load a scorer; a class is built without options, and told the config's folder if it takes `config_dir`.

    Raises `PluginError` where there is no such scorer, `ConfigError` where it needs options.
    """
    found = registry.load("scorers", name, base_dir=base_dir)
    if inspect.isclass(found):
        found = construct(found, {}, name=name, where=f"scorer '{name}'", injected={"config_dir": base_dir})
    return normalize_scorer(found, name)


def check_scorers(scorers: Iterable[NormalizedScorer], gateway: GatewayConfig) -> list[str]:
    """Let all scorers look whether they can score, at once; return their notes. Raises what one of them raises."""
    gateway_url = f"http://{gateway.host}:{gateway.port}" if gateway.port else None

    async def check_all() -> list[str]:
        notes = await asyncio.gather(*(scorer.check(gateway_url=gateway_url) for scorer in scorers))
        return [note for its_notes in notes for note in its_notes]

    return asyncio.run(check_all())
