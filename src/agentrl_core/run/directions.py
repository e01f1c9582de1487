"""Apply `RunControl` to the training loop of a live run: pause it between two steps, and change its limits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from agentrl_core.api.run_rows import RunControl
from agentrl_core.config.live import with_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.config.training_sections import EvalConfig, TrainerConfig

C = TypeVar("C", bound="EvalConfig | TrainerConfig")

_TICK_S = 0.5
"""Seconds between two looks at a request to stop: signal handlers cannot wake this wait."""


class Directions:
    """The newest `RunControl` that this process knows; `obey` may be called from any thread.

    `notice(message)` is called, on that thread, when people pause the run and when it goes on.
    """

    def __init__(self, notice: Callable[[str], None] = lambda _: None) -> None:
        self._notice = notice
        self._changed = threading.Condition()
        self._control = RunControl()

    @property
    def paused(self) -> bool:
        """Whether the run is paused now."""
        return self._control.wanted == "pause"

    def obey(self, control: RunControl) -> None:
        """Take over what people want from now on."""
        with self._changed:
            before, self._control = self.paused, control
            self._changed.notify_all()
        if self.paused != before:
            self._notice("the run is paused; `runs resume` lets it go on" if self.paused else "the run goes on")

    def limited(self, section: str, config: C) -> C:
        """Return a section of the config with the limits that hold now."""
        return with_limits(section, config, self._control.limits)

    def wait_while_paused(self, asked_to_stop: Callable[[], None]) -> None:
        """Block while the run is paused; `asked_to_stop` is called repeatedly, and may raise to end the wait."""
        while self.paused:
            asked_to_stop()
            with self._changed:
                if self.paused:
                    self._changed.wait(_TICK_S)
