"""Levels of isolation, as the option `isolation` and the details of a score name them."""

from __future__ import annotations

from typing import Final, Literal

FULL: Final = "full"
"""Own namespaces (user, processes, IPC, network, mounts), the allowlist of system calls, and Landlock if available."""
CONFINED: Final = "confined"
"""The allowlist of system calls and Landlock, in the machine's own namespaces."""
LIMITS: Final = "limits"
"""Only limits on time, memory, files and output."""
Level = Literal["full", "confined", "limits"]
