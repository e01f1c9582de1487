"""Circuit breaker of one judge model: after several failures in a row its server gets no calls for a while."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Circuit breaker: opens for `reset_s` seconds after `failures` failures in a row, then lets one probe decide.

    Each call that `admit` lets through must end with `succeeded`, `failed` or `released`. Not thread-safe: use it on
    one event loop.
    """

    def __init__(self, *, failures: int, reset_s: float, clock: Callable[[], float]) -> None:
        self._failures, self._reset_s, self._clock = failures, reset_s, clock
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def wait_s(self) -> float:
        """Seconds until a call may be tried; 0 if one may be tried now, or if a probe is under way."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._reset_s - self._clock())

    def admit(self) -> bool:
        """Return whether a call may be made now; after `reset_s` only the first caller may, as the probe."""
        if self._opened_at is None:
            return True
        if self._probing or self.wait_s > 0:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Close the breaker: the server answers."""
        self._in_a_row, self._opened_at, self._probing = 0, None, False

    def failed(self) -> None:
        """Count a failure, and open the breaker if it was the last one allowed or a probe."""
        self._in_a_row += 1
        if self._probing or (self._opened_at is None and self._in_a_row >= self._failures):
            self._opened_at, self._probing = self._clock(), False

    def released(self) -> None:
        """End a call whose outcome says nothing about the server, such as a cancelled one."""
        self._probing = False
