"""Rejoining of a process that was declared lost, for example because its machine was suspended for a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from agentrl_core.errors import LostError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_REJOINS = 3
"""Times that a process joins again after it was declared lost; those before a long membership do not count."""
_LONG_LEASES = 10
"""Leases after which a membership was long."""


def rejoining(take_part: Callable[[], T], *, lease_s: float, notice: Callable[[str], None]) -> T:
    """Return what `take_part` returns; call it anew when it ends with `LostError`, a few times in a row."""
    tries = 0
    while True:
        began = time.monotonic()
        try:
            return take_part()
        except LostError as error:
            tries = 1 if time.monotonic() - began > _LONG_LEASES * lease_s else tries + 1
            if tries > _REJOINS:
                raise
            notice(f"{error}; joining again ({tries} of {_REJOINS})")
