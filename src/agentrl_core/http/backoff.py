"""Retry policy for requests to servers, providers and judges: after which statuses, and after which wait."""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Callable, Mapping

import attrs

LATER = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""HTTP statuses after which the same request may succeed; 520 to 524 are Cloudflare's, 529 is Anthropic's."""

_MOST_STEPS = 64
"""Attempts after which a wait has reached its limit, or does not grow."""


@attrs.frozen(kw_only=True)
class Backoff:
    """Waits that grow from attempt to attempt, each less a random part, so that callers do not all return at once."""

    first_s: float = 0.5
    """Wait before the second attempt."""
    factor: float = 2.0
    """Factor from each wait to the next."""
    longest_s: float = 30.0
    jitter: float = 0.5
    """Largest share of a wait that is randomly subtracted."""
    uniform: Callable[[float, float], float] = random.uniform

    def wait_s(self, attempt: int, asked_s: float | None = None) -> float:
        """Return the wait after attempt number `attempt`, counted from 0; never less than the server asked for."""
        grown = min(self.first_s, self.longest_s)
        for _ in range(min(attempt, _MOST_STEPS)):
            grown = min(grown * self.factor, self.longest_s)
        return max(grown * self.uniform(1 - self.jitter, 1.0), asked_s or 0.0)


def retry_after_s(headers: Mapping[str, str], clock: Callable[[], float] = time.time) -> float | None:
    """Return the wait that a server asks for, in seconds or as a date; None if it gives no usable one."""
    value = headers.get("retry-after", "").strip()
    try:
        wait = float(value)
    except ValueError:
        try:
            wait = email.utils.parsedate_to_datetime(value).timestamp() - clock()
        except (ValueError, OverflowError):
            return None
    return max(0.0, wait) if math.isfinite(wait) else None
