"""`Member`: a process that takes part in a run, as the store knows it, and how its death is noticed.

A member counts its heartbeats in the store. Whoever sees the same count for longer than the member's `lease_s`, by a
monotonic clock of its own, declares the member lost. No process compares its clock with another's, so clocks that are
wrong or that jump end no lease and keep none alive.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

Role: TypeAlias = Literal["serve", "sample", "train"]
"""Part that a process plays in a run: engine and gateway; scheduler and agents; learner."""

MemberState: TypeAlias = Literal["live", "left", "lost"]


@attrs.frozen(kw_only=True)
class Member:
    """One process of a run in one role; a process that plays several roles is several members."""

    run_id: str
    role: Role
    id: str = attrs.field(factory=lambda: uuid.uuid4().hex[:16])
    """Unique in the store, and never used again."""
    host: str = attrs.field(factory=socket.gethostname)
    pid: int = attrs.field(factory=os.getpid)
    joined_at: float = attrs.field(factory=time.time)
    """Unix time, for people; nothing is decided by it."""
    lease_s: float = 60.0
    """Seconds without a heartbeat after which the others may declare the member lost."""
    config_digest: str = ""
    """Digest of the options that all members of a run must share."""
    packages: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution -> version, of core and of the packages whose components the run uses."""
    url: str = ""
    """Address of a serving member's gateway, as other members reach it."""
    state: MemberState = "live"
    beats: int = 0
    """Heartbeats so far."""
    report: Mapping[str, Any] = attrs.field(factory=dict)
    """What the member said with its last heartbeat: JSON of its own choice, such as its policy version, what it waits
    for, and its counts."""

    @property
    def name(self) -> str:
        """Role, host and process for messages, such as `sample on node7 (process 4711)`."""
        return f"{self.role} on {self.host} (process {self.pid})"
