"""Driver that runs members as real processes, kills one of them at random again and again, and starts another."""

from __future__ import annotations

import math
import os
import queue
import random
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.members import Role

HOUR_S = 3600.0
_ROOT = Path(__file__).parents[2]


@attrs.frozen(kw_only=True)
class Faults:
    """Faults that the driver injects: which roles it kills, and how often."""

    roles: Sequence[Role] = ("sample", "train")
    """Roles of the members that are killed."""
    kills: int = 20
    """After so many kills the members are left alone, so that every run comes to its end."""
    every: tuple[int, int] = (5, 40)
    """Least and largest advance of the run between two kills: kills follow the work, not a clock."""
    every_s: float | None = None
    """Seconds between two kills, instead of `every`."""
    skew_s: float = HOUR_S
    """Each process has a wall clock that is wrong by up to this."""
    seed: int = 0
    deadline_s: float = 900.0


class Cast(Protocol):
    """The members of a run, and what they tell."""

    @property
    def folder(self) -> str:
        """Working directory of the members; their errors go to a file in it."""
        ...

    @property
    def members(self) -> Mapping[Role, int]:
        """Role -> number of members."""
        ...

    def command(self, role: Role) -> Sequence[str]:
        """Return the command that starts a member."""
        ...

    def heard(self, role: Role, line: str) -> Mapping[str, Any] | None:
        """Return the event that a line of a member's output tells: `work` is how much the run has advanced by it."""
        ...

    def is_refusal(self, code: int) -> bool:
        """Return whether a member with this exit code ended because others had taken its place."""
        ...


@attrs.define
class Chaos:
    """Members of one run, and what was done to them."""

    cast: Cast
    faults: Faults
    kills: Counter[str] = attrs.field(factory=Counter)
    killed_at: dict[int, float] = attrs.field(factory=dict)
    """Process -> machine's monotonic time of its kill."""
    refused: int = 0
    """Members that ended themselves because others had declared them lost, or because a trainer was there."""
    wall_s: float = 0.0
    events: list[Mapping[str, Any]] = attrs.field(factory=list)
    """Messages of the members, in the order in which they arrived."""
    _members: dict[subprocess.Popen[bytes], Role] = attrs.field(factory=dict)
    _heard: queue.SimpleQueue[Mapping[str, Any] | subprocess.Popen[bytes]] = attrs.field(factory=queue.SimpleQueue)
    """Events, and members that have ended."""

    def carry_out(self) -> None:
        """Run to the end of the last step; raise `RuntimeError`, with the members' last words, if that never comes."""
        began = time.monotonic()
        source = random.Random(self.faults.seed)
        work, next_kill, kill_at = 0, source.randint(*self.faults.every), self._next_at(began)
        try:
            for role, count in self.cast.members.items():
                for _ in range(count):
                    self._start(role, source)
            while self._members:
                end = min(began + self.faults.deadline_s, kill_at)
                try:
                    heard = self._heard.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    if end < kill_at:
                        raise self._failure(f"the run is not at its end after {self.faults.deadline_s:g} s") from None
                    self._kill(source)
                    kill_at = self._next_at(kill_at)
                    continue
                if isinstance(heard, subprocess.Popen):
                    self._ended(heard, source)
                    continue
                self.events.append(heard)
                work += heard.get("work", 0)
                if self.faults.every_s is None and work >= next_kill and sum(self.kills.values()) < self.faults.kills:
                    self._kill(source)
                    next_kill = work + source.randint(*self.faults.every)
        finally:
            for member in self._members:
                member.kill()
                member.wait()
            self.wall_s = time.monotonic() - began

    def _next_at(self, last: float) -> float:
        """Return when the next kill is due by the clock; never if kills follow the work, or after the last one."""
        if self.faults.every_s is None or sum(self.kills.values()) >= self.faults.kills:
            return math.inf
        return last + self.faults.every_s

    def _start(self, role: Role, source: random.Random) -> None:
        skew_s = source.uniform(0, self.faults.skew_s)
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        environ = {
            "PYTHONPATH": path,
            "WALL_CLOCK_SKEW_S": str(skew_s),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONUNBUFFERED": "1",
        }
        with self._words.open("ab") as words:
            member = subprocess.Popen(
                self.cast.command(role),
                cwd=self.cast.folder,
                env=os.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
            )
        self._members[member] = role
        threading.Thread(target=self._listen, args=(member, role), daemon=True).start()

    def _listen(self, member: subprocess.Popen[bytes], role: Role) -> None:
        assert member.stdout
        with member.stdout as lines:
            for line in lines:
                event = self.cast.heard(role, line.decode())
                if event is not None:
                    self._heard.put(event)
        member.wait()
        self._heard.put(member)

    def _ended(self, member: subprocess.Popen[bytes], source: random.Random) -> None:
        """Start another member in the place of one that was killed or refused."""
        role, code = self._members.pop(member), member.returncode
        if code == 0:  # it has reached the end of the run
            return
        if self.cast.is_refusal(code):
            self.refused += 1
        elif member.pid not in self.killed_at:
            raise self._failure(f"a member ended with code {code}")
        self._start(role, source)

    def _kill(self, source: random.Random) -> None:
        # First a role, because there is one trainer among many samplers.
        role = source.choice(self.faults.roles)
        members = [member for member, its in self._members.items() if its == role and member.poll() is None]
        if members:
            member = source.choice(members)
            self.killed_at[member.pid] = time.monotonic()
            self.kills[role] += 1
            member.kill()

    @property
    def _words(self) -> Path:
        return Path(self.cast.folder, "words.txt")

    def _failure(self, what: str) -> RuntimeError:
        return RuntimeError(f"{what}: {self._words.read_text()[-3000:]}")

    def recoveries_s(self) -> list[float]:
        """Return, for each slot whose record a kill ended, the seconds until it has the next record."""
        open_at: dict[tuple[object, object], float] = {}
        found = []
        owners: dict[object, tuple[object, object]] = {}
        for event in self.events:
            if event["event"] == "began":
                slot = (event["group"], event["slot"])
                owners[event["record"]] = slot
                if slot in open_at:
                    found.append(event["at"] - open_at.pop(slot))
                at = self.killed_at.get(event["pid"])
                if at is not None:
                    open_at[slot] = at
            elif event["event"] == "ended":
                open_at.pop(owners[event["record"]], None)
        return found
