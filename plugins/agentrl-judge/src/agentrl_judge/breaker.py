"""A circuit breaker: after failures in a row a server is left alone, then tried with one call."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Closed while all is well; open for `reset_s` after `failures` in a row; then one probe decides.

    Used on one event loop. Each call that `admit` lets through ends with `succeeded`, `failed` or `released`.
    """

    def __init__(self, *, failures: int, reset_s: float, clock: Callable[[], float]) -> None:
        self._failures, self._reset_s, self._clock = failures, reset_s, clock
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def wait_s(self) -> float:
        """Seconds until a call may be tried; 0 where one may now, or a probe is under way."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._reset_s - self._clock())

    def admit(self) -> bool:
        """Whether a call may be made now; of those that come when the time is up, only the first."""
        if self._opened_at is None:
            return True
        if self._probing or self.wait_s > 0:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Close: the server answers."""
        self._in_a_row, self._opened_at, self._probing = 0, None, False

    def failed(self) -> None:
        """Count; a probe that failed opens anew."""
        self._in_a_row += 1
        if self._probing or (self._opened_at is None and self._in_a_row >= self._failures):
            self._opened_at, self._probing = self._clock(), False

    def released(self) -> None:
        """End a call that says nothing of the server, a cancelled one for instance."""
        self._probing = False
