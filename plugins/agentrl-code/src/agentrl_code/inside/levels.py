"""Levels of isolation, by the names that configs and scores give them."""

from __future__ import annotations

from typing import Final, Literal

FULL: Final = "full"
"""Namespaces of its own (user, processes, IPC, network, files), the allowlist of calls, Landlock where there is one."""
CONFINED: Final = "confined"
"""The allowlist and Landlock, in the machine's own namespaces."""
LIMITS: Final = "limits"
"""Bounds on what it takes, and nothing else."""
Level = Literal["full", "confined", "limits"]
