"""What people want of a live run, as its training loop obeys it: a pause between two steps, and changed limits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from agentrl_core.api.run_rows import RunControl
from agentrl_core.config.live import with_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.config.schema import EvalConfig, TrainerConfig

C = TypeVar("C", bound="EvalConfig | TrainerConfig")

_TICK_S = 0.5
"""Seconds between two looks at a request to stop: signal handlers cannot wake this wait."""


class Directions:
    """The newest `RunControl` that this process knows; `obey` may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._control = RunControl()

    def obey(self, control: RunControl) -> None:
        """Take over what people want from now on."""
        with self._changed:
            self._control = control
            self._changed.notify_all()

    def limited(self, section: str, config: C) -> C:
        """Return a section of the config with the limits that hold now."""
        return with_limits(section, config, self._control.limits)

    def wait_while_paused(self, asked_to_stop: Callable[[], None], notice: Callable[[str], None]) -> None:
        """Block while the run is paused; `asked_to_stop` is called repeatedly, and may raise to end the wait."""
        with self._changed:
            if self._control.wanted != "pause":
                return
        notice("paused; no step begins until the run is resumed")
        while True:
            asked_to_stop()
            with self._changed:
                if self._control.wanted != "pause":
                    break
                self._changed.wait(_TICK_S)
        notice("the run goes on")
