"""Waits of one member of a run for another: told to the user, and ended by a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agentrl_core.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 0.2
"""Seconds between two looks at what another process does; no event reaches this process from there."""

_REMIND_S = 60.0


class Wait:
    """One wait at a time: `notice` hears at once and then each minute what is missing; `limit_s` ends it (None: never).

    A wait of less than `quiet_s` is not told at all. Call `on` on every turn of the loop that waits, and `over` when it
    need not wait any more.
    """

    def __init__(
        self,
        notice: Callable[[str], None],
        limit_s: float | None,
        *,
        quiet_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notice, self._limit_s, self._quiet_s, self._clock = notice, limit_s, quiet_s, clock
        self._what = ""
        self._began = 0.0
        self._told: float | None = None

    def on(self, what: str, fix: str) -> None:
        """Go on waiting for `what`; raise `RunError` after `limit_s`. Something else to wait for starts a new wait."""
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._told = what, now, None
        waited = now - self._began
        if self._limit_s is not None and waited >= self._limit_s:
            raise RunError(
                f"waited {self._limit_s:g} s for {what}; {fix}. roles.wait_s sets how long to wait (null: no limit)"
            )
        if self._told is None and waited >= self._quiet_s:
            self._told = now
            self._notice(f"waiting for {what}; {fix}")
        elif self._told is not None and now - self._told >= _REMIND_S:
            self._told = now
            self._notice(f"still waiting for {what}, for {waited / 60:.0f} min; {fix}")

    def over(self) -> None:
        """End the wait."""
        self._what = ""

    @property
    def what(self) -> str:
        """Text for others of what this member waits for; empty if it does not wait."""
        return self._what
