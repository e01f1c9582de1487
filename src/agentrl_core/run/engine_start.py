"""Start of the engine of a run, in the trainer's process or in one that only serves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.engines import Engine
    from agentrl_core.run.components import RunComponents


class _Notices(logging.Handler):
    """Tells the user the engine's warnings, such as a model server that is away."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._notice = notice

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._notice(record.getMessage())
        except Exception:  # noqa: BLE001 (as every handler does: what is logged must not fail because of it)
            self.handleError(record)


def tell_warnings(notice: Callable[[str], None], undo: ExitStack) -> None:
    """Pass what the engines warn of to `notice`, from any thread, until `undo` is closed."""
    handler, engines = _Notices(notice), logging.getLogger("agentrl_core.engines")
    engines.addHandler(handler)
    undo.callback(engines.removeHandler, handler)


def start_engine(
    components: RunComponents,
    model_dir: Path,
    undo: ExitStack,
    *,
    log_dir: Path,
    check: Callable[[RunComponents, Engine], None] = lambda *_: None,
) -> Engine:
    """Build the config's engine, which `undo` closes, and start it; servers that it launches log to `log_dir`.

    `check` is called before the start, and raises for an engine that does not fit the rest of the config.

    Raises `EngineError` if the engine cannot load new weights: every step of a run publishes some, so the run would end
    after its first step, with the episodes of that step wasted.
    """
    engine: Engine = components.build(
        "engines", "engine", components.config.engine, model_dir=model_dir, log_dir=log_dir
    )
    undo.callback(engine.close)
    check(components, engine)
    engine.start()
    if not getattr(engine, "takes_weights", True):
        raise EngineError(f"{engine.notice or 'the engine loads no new weights'}. Nothing was sampled")  # type: ignore[attr-defined]  # optional
    return engine
