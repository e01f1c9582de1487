"""Driver that runs members as real processes, kills one of them at random again and again, and starts another."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from tests.reliability.worker import REFUSED, Run

if TYPE_CHECKING:
    from agentrl_core.api.members import Role

HOUR_S = 3600.0


@attrs.frozen(kw_only=True)
class Faults:
    """What is done to the members."""

    samplers: int = 4
    kills: int = 20
    """After so many kills the members are left alone, so that every run comes to its end."""
    every_s: tuple[float, float] = (0.3, 1.0)
    skew_s: float = HOUR_S
    """Each process has a wall clock that is wrong by up to this."""
    seed: int = 0
    deadline_s: float = 900.0


@attrs.define
class Chaos:
    """Members of one run, and what was done to them."""

    run: Run
    faults: Faults
    kills: Counter[str] = attrs.field(factory=Counter)
    killed_at: dict[int, float] = attrs.field(factory=dict)
    """Process -> machine's monotonic time of its kill."""
    refused: int = 0
    """Members that ended themselves because others had declared them lost, or because a trainer was there."""
    wall_s: float = 0.0
    _members: dict[subprocess.Popen[bytes], Role] = attrs.field(factory=dict)
    _changed: threading.Event = attrs.field(factory=threading.Event)

    def carry_out(self) -> None:
        """Run to the end of the last step; raise `RuntimeError`, with the workers' last words, if that never comes."""
        began = time.monotonic()
        source = random.Random(self.faults.seed)
        roles: Sequence[Role] = ["train", *["sample"] * self.faults.samplers]  # type: ignore[list-item]
        try:
            for role in roles:
                self._start(role, source)
            next_kill = time.monotonic() + source.uniform(*self.faults.every_s)
            while not self._finished(source):
                if time.monotonic() - began > self.faults.deadline_s:
                    raise RuntimeError(f"the run is not at its end after {self.faults.deadline_s:g} s: {self._words()}")
                if sum(self.kills.values()) < self.faults.kills and time.monotonic() >= next_kill:
                    self._kill(source)
                    next_kill = time.monotonic() + source.uniform(*self.faults.every_s)
                self._changed.wait(max(0.0, min(next_kill - time.monotonic(), 1.0)) or 1.0)
                self._changed.clear()
            for member in self._members:
                if member.wait(self.faults.deadline_s) not in (0, REFUSED):
                    raise RuntimeError(f"a member failed at the end: {self._words()}")
        finally:
            for member in self._members:
                member.kill()
                member.wait()
            self.wall_s = time.monotonic() - began

    def _start(self, role: Role, source: random.Random) -> None:
        skew_s = source.uniform(-self.faults.skew_s, self.faults.skew_s)
        environ = os.environ | {"WALL_CLOCK_SKEW_S": str(skew_s), "PYTHONDONTWRITEBYTECODE": ""}
        file = Path(self.run.folder, "run.json")
        with Path(self.run.folder, "words.txt").open("ab") as words:
            member = subprocess.Popen(
                [sys.executable, "-m", "tests.reliability.worker", role, str(file)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
            )
        self._members[member] = role
        threading.Thread(target=self._await, args=(member,), daemon=True).start()

    def _await(self, member: subprocess.Popen[bytes]) -> None:
        member.wait()
        self._changed.set()

    def _finished(self, source: random.Random) -> bool:
        """Replace members that have ended; return whether the trainer has reached the end."""
        for member, role in list(self._members.items()):
            code = member.poll()
            if code is None:
                continue
            if code == 0 and role == "train":
                return True
            if code == 0:  # sampling is closed
                continue
            del self._members[member]
            if code == REFUSED:
                self.refused += 1
            elif code != -9:
                raise RuntimeError(f"a member failed with code {code}: {self._words()}")
            self._start(role, source)
        return False

    def _kill(self, source: random.Random) -> None:
        alive = [member for member in self._members if member.poll() is None]
        if alive:
            # first a role, because there is one trainer among many samplers
            role = source.choice(sorted({self._members[member] for member in alive}))
            member = source.choice([member for member in alive if self._members[member] == role])
            self.killed_at[member.pid] = time.monotonic()
            self.kills[self._members[member]] += 1
            member.kill()

    def _words(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return Path(self.run.folder, "words.txt").read_text()[-3000:]
        return ""

    def events(self) -> list[dict[str, object]]:
        """Return what the workers logged, in order."""
        return [json.loads(line) for line in self.run.log.read_text().splitlines()]

    def recoveries_s(self) -> list[float]:
        killed = dict(self.killed_at)
        open_at: dict[tuple[object, object], float] = {}
        found = []
        owners: dict[object, tuple[object, object]] = {}
        for event in self.events():
            if event["event"] == "began":
                slot = (event["group"], event["slot"])
                owners[event["record"]] = slot
                if slot in open_at:
                    found.append(float(str(event["at"])) - open_at.pop(slot))
                at = killed.get(int(str(event["pid"])))
                if at is not None:
                    open_at[slot] = at
            elif event["event"] == "ended":
                open_at.pop(owners[event["record"]], None)
        return found
