"""Start of the engine of a run, in the trainer's process or in one that only serves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.engines import Engine
    from agentrl_core.run.components import RunComponents


def start_engine(components: RunComponents, model_dir: Path, undo: ExitStack, *, log_dir: Path) -> Engine:
    """Build the config's engine, which `undo` closes, and start it; servers that it launches log to `log_dir`.

    Raises `EngineError` if the engine cannot load new weights: every step of a run publishes some, so the run would end
    after its first step, with the episodes of that step wasted.
    """
    engine: Engine = components.build(
        "engines", "engine", components.config.engine, model_dir=model_dir, log_dir=log_dir
    )
    undo.callback(engine.close)
    engine.start()
    if not getattr(engine, "takes_weights", True):
        raise EngineError(f"{engine.notice or 'the engine loads no new weights'}. Nothing was sampled")  # type: ignore[attr-defined]  # optional
    return engine
