"""Account of a run after all of its members have ended: what the store must say, whatever was killed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import attrs
from tests.reliability.worker import CALLS

from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from tests.reliability.chaos import Chaos
    from tests.reliability.worker import Run

    from agentrl_core.api.members import Member
    from agentrl_core.api.run_rows import GroupRow, StepRow
    from agentrl_core.api.stores import RunReader
    from agentrl_core.types import Episode, Record


@attrs.frozen(kw_only=True)
class Account:
    """All rows of a run."""

    members: Sequence[Member]
    groups: Sequence[GroupRow]
    records: Sequence[Record]
    steps: Sequence[StepRow]
    trained: Sequence[Episode]
    """Records of live steps, with their calls."""

    @classmethod
    async def of(cls, store: RunReader, run_id: str) -> Account:
        """Read a run."""
        steps = await store.steps(run_id)
        names = [name for step in steps if not step.voided for name in step.records]
        episodes = [await store.episode(name) for name in names]
        return cls(
            members=await store.members(run_id),
            groups=await store.groups(run_id),
            records=await store.records(run_id),
            steps=steps,
            trained=[episode for episode in episodes if episode is not None],
        )

    def problems(self, run: Run, chaos: Chaos) -> list[str]:
        """Return what must not be, one line each; empty if the run is in order."""
        live = [step for step in self.steps if not step.voided]
        groups = {group.id: group for group in self.groups}
        consumed = [name for step in live for name in step.groups]
        records = [name for step in live for name in step.records]
        ended = [str(event["record"]) for event in chaos.events if event["event"] == "ended"]
        found = [f"{record.id} has not ended" for record in self.records if record.outcome is Outcome.RUNNING]
        found += [f"{name} ended twice" for name in _repeated(ended)]
        found += [f"group {name} was trained twice" for name in _repeated(consumed)]
        found += [f"record {name} was trained twice" for name in _repeated(records)]
        if [step.step for step in live] != list(range(1, run.steps + 1)):
            found.append(f"the live steps are {[step.step for step in live]}")
        if len(records) != len(self.trained):
            found.append(f"{len(records) - len(self.trained)} trained records are not in the store")
        positions = sorted(groups[name].index for name in consumed)
        if positions != list(range(run.steps * run.tasks_per_step)):
            found.append(f"the trained positions are not each of the first once: {positions}")
        found += [f"group {name} is {groups[name].state}" for name in consumed if groups[name].state != "trained"]
        found += self._problems_of_groups(run.group_size, consumed)
        found += self._problems_of_members()
        found += self._problems_of_age(run.max_head_offpolicyness)
        return found

    def _problems_of_groups(self, size: int, consumed: Iterable[str]) -> list[str]:
        slots = Counter((item.record.group_id, item.record.sample_index) for item in self.trained)
        wanted = {(name, slot) for name in consumed for slot in range(size)}
        found = [
            f"slot {slot} of group {name} was trained {slots[name, slot]} times"
            for name, slot in slots - Counter(wanted)
        ]
        found += [f"slot {slot} of group {name} was not trained" for name, slot in wanted - slots.keys()]
        for item in self.trained:
            if item.record.outcome is not Outcome.SCORED:
                found.append(f"{item.record.id} was trained and is {item.record.outcome}")
            if [call.seq for call in item.interactions] != list(range(CALLS)):
                found.append(f"{item.record.id} was trained with {len(item.interactions)} calls")
        return found

    def _problems_of_members(self) -> list[str]:
        found = [f"{member.name} is live" for member in self.members if member.state == "live"]
        found += [f"group {group.id} is open" for group in self.groups if group.state in ("open", "reserved", "taken")]
        return found + [f"group {group.id} has a member" for group in self.groups if group.member_id]

    def _problems_of_age(self, limit: int) -> list[str]:
        steps = {name: step.step for step in self.steps if not step.voided for name in step.records}
        found = []
        for item in self.trained:
            oldest = min(version for call in item.interactions for version in call.output_versions)
            lag = steps[item.record.id] - 1 - self._step_of(oldest)
            if lag > limit:
                found.append(f"{item.record.id} was trained {lag} steps after its first token was sampled")
        return found

    def _step_of(self, version: int) -> int:
        """Return the number of steps that were done when a version was published."""
        return max((step.step for step in self.steps if step.version <= version and not step.voided), default=0)

    def table(self, run: Run, chaos: Chaos) -> list[tuple[str, str]]:
        """Return what was done to the run and what became of it, for people."""
        outcomes = Counter(
            f"{record.outcome.value}({record.reason})" if record.reason else record.outcome.value
            for record in self.records
        )
        recoveries = chaos.recoveries_s()
        told = {
            "kills": ", ".join(f"{role} {count}" for role, count in sorted(chaos.kills.items())),
            "members": ", ".join(
                f"{state} {count}" for state, count in sorted(Counter(member.state for member in self.members).items())
            ),
            "ended by themselves": str(chaos.refused),
            "records": ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())),
            "trained records": str(len(self.trained)),
            "voided steps": str(sum(step.voided for step in self.steps)),
            "takeovers": str(sum(group.takeovers for group in self.groups)),
            "from a kill to the slot's next record": (
                f"median {median(recoveries):.1f} s, longest {max(recoveries):.1f} s" if recoveries else "-"
            ),
            "lease": f"{run.lease_s:g} s",
            "wall": f"{chaos.wall_s:.0f} s",
        }
        return list(told.items())


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
