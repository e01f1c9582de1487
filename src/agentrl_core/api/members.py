"""`Member`: a process that takes part in a run, as the store knows it, and how its death is noticed.

A member counts its heartbeats in the store. Whoever sees the same count for longer than the member's `lease_s`, by a
monotonic clock of its own, declares the member lost. No process compares its clock with another's, so clocks that are
wrong or that jump end no lease and keep none alive. Members on one machine need not wait that long for each other: the
operating system tells them when a process has ended.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

Role: TypeAlias = Literal["serve", "sample", "train"]
"""Part that a process plays in a run: engine and gateway; scheduler and agents; learner."""

MemberState: TypeAlias = Literal["live", "left", "lost"]


_PROC = Path("/proc")
_START, _ENDED = 19, "ZX"
"""Place of a process's start time in `/proc/PID/stat`, counted after the name; states of a process that has ended."""


def _machine() -> str:
    """Return the identity of this boot of this machine, and of what this process sees of it; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers of one machine share its boot, but neither numbers nor start times of processes.
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}/{(_PROC / 'self/ns/time').readlink()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return when a process of this machine started; empty if there is none (any more), None if that is unknown."""
    try:
        # After the name, which may have blanks and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "" if _is_free(pid) else None  # processes of other users may be hidden
    except OSError:
        return None
    return "" if fields[0] in _ENDED else fields[_START]


def _is_free(pid: int) -> bool:
    """Return whether no process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user, so it lives; no number of this system
        return False
    return False


def process_identity(pid: int) -> str:
    """Return what tells a process of this machine from all others, whatever their number: the boot and its start.

    Empty where the system does not tell (other systems than Linux), and for a process that is not there.
    """
    machine, start = _machine(), _start_of(pid)
    return f"{machine} {start}" if machine and start else ""


@attrs.frozen(kw_only=True)
class Member:
    """One process of a run in one role; a process that plays several roles is several members."""

    run_id: str
    role: Role
    id: str = attrs.field(factory=lambda: uuid.uuid4().hex[:16])
    """Unique in the store, and never used again."""
    host: str = attrs.field(factory=socket.gethostname)
    pid: int = attrs.field(factory=os.getpid)
    process: str = attrs.field(
        default=attrs.Factory(lambda member: process_identity(member.pid), takes_self=True), repr=False
    )
    """`process_identity` of the process, on its machine."""
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
    """Report of the member with its last heartbeat: JSON of its own choice, such as its policy version, what it waits
    for, and its counts."""

    @property
    def name(self) -> str:
        """Role, host and process for messages, such as `sample on node7 (process 4711)`."""
        return f"{self.role} on {self.host} (process {self.pid})"

    @property
    def has_ended(self) -> bool:
        """Whether the process of this member has ended for certain: it ran on this machine, which says so."""
        machine, _, start = self.process.rpartition(" ")
        return bool(start) and machine == _machine() and _start_of(self.pid) not in (start, None)

    @property
    def seems_gone(self) -> bool:
        """Whether this host has no such process; less certain, because other machines may have the same host name."""
        return self.has_ended or (self.host == socket.gethostname() and _is_free(self.pid))
