"""State machine that compares a store's members, claims, admission and resuming with a small model in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.errors import ClaimLostError
from agentrl_core.types import Outcome
from agentrl_testing.store_values import add_record, call, create_run, join, step

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agentrl_core.api.stores import Store

_ADMISSION = Admission(max_head_offpolicyness=1, tasks_per_step=2, requeue=1, max_takeovers=1)
_PENDING = ("open", "ready", "taken")


@attrs.define(kw_only=True)
class _Group:
    """A group as the model has it."""

    id: str
    index: int
    version: int
    tries: int = 0
    is_eval: bool = False
    state: str = "open"
    member: str = ""
    takeovers: int = 0
    tokens: set[int] = attrs.field(factory=set)
    """Versions that sampled its scored records."""


class StoreMachine(RuleBasedStateMachine):
    """Several samplers, a trainer that may start over, and what the contract says about them.

    A subclass sets `store`.
    """

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.run_id = ""
        self.members: dict[str, bool] = {}
        self.groups: dict[str, _Group] = {}
        self.claims: list[GroupClaim] = []
        self.turns: dict[int, int] = {}
        """Position to sample again -> tries."""
        self.released: set[int] = set()
        self.asked: set[int] = set()
        """Positions that people want again, or whose group was set aside: they come whatever their tries."""
        self.next_index = self.version = self.replaced = 0
        self.step_of = {0: 0}
        self.admitted = -1
        self.steps: list[tuple[int, list[str]]] = []
        """Version and groups of each live step."""
        self.void: set[int] = set()

    def wait_for(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call of the store, none of which may take long."""
        return self.loop.run_until_complete(asyncio.wait_for(call, 60))

    def teardown(self) -> None:
        """Close the event loop."""
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        """Create a run that publishes version 0."""
        self.run_id = self.wait_for(create_run(self.store))
        self.wait_for(self.store.add_version(self.run_id, 0, step=0))

    # --- Samplers ---

    @rule()
    def join(self) -> None:
        """Another sampler joins."""
        self.members[self.wait_for(join(self.store, self.run_id))] = True

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 4))
    def claim(self, data: st.DataObject, count: int) -> None:
        """Ask for groups: also as a member that has ended."""
        member = data.draw(st.sampled_from(list(self.members)))
        claiming = self.store.claim_groups(
            self.run_id, member, count, admission=_ADMISSION, size=1, version=self.version, task_at=str
        )
        if not self.members[member]:
            assert self.loses(claiming)
            return
        found = self.wait_for(claiming)
        expected = self.free(count, is_eval=True)
        new: list[tuple[int, int]] = []
        if self.admitted >= 0:
            expected += self.free(count - len(expected), is_eval=False)
            ahead = (1 + self.admitted + 1 - len(self.steps)) * 2 - (self.num_pending - self.replaced)
            room = min(count - len(expected), ahead)
            while len(new) < room:
                again = min(self.released, default=None)
                if again is None:
                    new.append((self.next_index, 0))
                    self.next_index += 1
                else:
                    self.released.remove(again)
                    self.asked.discard(again)
                    new.append((again, self.turns.pop(again)))
        assert [item.group_id for item in found[: len(expected)]] == [group.id for group in expected]
        assert [(item.index, item.tries) for item in found[len(expected) :]] == new
        for item in found:
            group = self.groups.setdefault(
                item.group_id,
                _Group(id=item.group_id, index=item.index, version=self.version, tries=item.tries),
            )
            group.member = member
            assert (item.takeovers, bool(item.scored)) == (group.takeovers, bool(group.tokens))
        self.claims += found

    def free(self, count: int, *, is_eval: bool) -> list[_Group]:
        """Return the first groups without a member; those that lost too many die on the way."""
        found: list[_Group] = []
        groups = [group for group in self.groups.values() if group.is_eval == is_eval and not group.member]
        for group in groups if is_eval else sorted(groups, key=lambda group: group.index):
            if len(found) >= count:
                break
            if group.state == "open":
                if group.takeovers > 1:
                    group.state = "dead"
                else:
                    found.append(group)
        return found

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        """Sample the slot of a claimed group, which another member may have by now."""
        item = data.draw(st.sampled_from(self.claims))
        group = self.groups[item.group_id]
        adding = add_record(self.store, self.run_id, group.id, member_id=item.member_id)
        if not self.holds(item):
            assert self.loses(adding)
        elif not group.tokens:
            record = self.wait_for(adding)
            self.wait_for(self.store.add_interaction(self.run_id, call(record, versions=((self.version, 1),))))
            scored = attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0)
            assert self.wait_for(self.store.finish_record(scored))
            group.tokens.add(self.version)
        else:
            adding.close()

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), usable=st.booleans())
    def finish(self, data: st.DataObject, usable: bool) -> None:  # noqa: FBT001 - hypothesis passes it
        """End a group, which another member may have by now."""
        item = data.draw(st.sampled_from(self.claims))
        group = self.groups[item.group_id]
        finishing = self.store.finish_group(item, usable=usable, requeue=_ADMISSION.requeue)
        if not self.holds(item):
            assert self.loses(finishing)
            return
        again = not usable and not group.is_eval and group.tries < 1
        assert self.wait_for(finishing) == again
        group.state, group.member = "ready" if usable else "dropped", ""
        if again:
            self.turns[group.index] = group.tries + 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give a group up, or try to."""
        item = data.draw(st.sampled_from(self.claims))
        self.wait_for(self.store.release_group(item))
        if self.holds(item):
            self.groups[item.group_id].member = ""

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        """Ask for the position of a group once more."""
        group = self.groups[data.draw(st.sampled_from(list(self.groups)))]
        wanted = (
            not group.is_eval
            and group.state in ("dropped", "dead")
            and group is self.newest(group.index)
            and group.index not in self.asked
        )
        assert self.wait_for(self.store.requeue_group(self.run_id, group.id)) == wanted
        if wanted:
            self.turns.setdefault(group.index, group.tries + 1)
            self.released.add(group.index)
            self.asked.add(group.index)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), lost=st.booleans(), beaten=st.booleans())
    def end(self, data: st.DataObject, lost: bool, beaten: bool) -> None:  # noqa: FBT001 - hypothesis passes them
        """End a member; one that has beaten since it was looked at stays."""
        member = data.draw(st.sampled_from(list(self.members)))
        live = self.members[member]
        beats = {row.id: row.beats for row in self.wait_for(self.store.members(self.run_id))}[member]
        if beaten:
            assert self.wait_for(self.store.beat(member, {})) == live
        if lost:
            ended = live and not beaten
            assert self.wait_for(self.store.declare_lost(member, beats=beats)) == ended
        else:
            ended = live
            self.wait_for(self.store.leave(member))
        if ended:
            self.members[member] = False
            for group in self.groups.values():
                if group.member == member:
                    group.member, group.takeovers = "", group.takeovers + 1

    # --- The trainer ---

    @rule()
    def evaluate(self) -> None:
        """Ask for an evaluation."""
        asking = self.store.add_evaluation(self.run_id, "eval", ["a"], version=self.version)
        for name in self.wait_for(asking):
            self.groups[name] = _Group(id=name, index=0, version=self.version, is_eval=True)

    @rule()
    def admit(self) -> None:
        """Let sampling go on after the last step."""
        self.wait_for(self.store.admit(self.run_id, len(self.steps)))
        self.admitted = len(self.steps)
        self.released |= set(self.turns)

    @precondition(lambda self: len(self.queue) >= 2 and all(group.state == "ready" for group in self.queue[:2]))
    @rule(crash=st.booleans(), replaced=st.integers(0, 1))
    def train(self, crash: bool, replaced: int) -> None:  # noqa: FBT001 - hypothesis passes it
        """Take a step; a crash loses it after the groups were taken."""
        expected = self.queue[:2]
        taken = self.wait_for(self.store.take_groups(self.run_id, 2))
        assert [group.id for group in taken] == [group.id for group in expected]
        self.wait_for(self.store.replace_groups(self.run_id, replaced))
        self.replaced += replaced
        for group in expected:
            group.state = "taken"
        if crash:
            return
        self.version += 1
        names = [group.id for group in expected]
        number = len(self.steps) + 1
        self.wait_for(self.store.add_step(step(self.run_id, number, groups=names, version=self.version)))
        self.wait_for(self.store.add_version(self.run_id, self.version, step=number))
        self.step_of[self.version] = number
        self.steps.append((self.version, names))
        self.replaced = 0
        for group in expected:
            group.state = "trained"

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Start over from an earlier step, as a trainer does that comes back."""
        number = data.draw(st.integers(0, len(self.steps)))
        assert self.wait_for(self.store.void_after(self.run_id, number)) == len(self.steps) - number
        undone = {name for _, names in self.steps[number:] for name in names}
        self.void |= {version for version, _ in self.steps[number:]}
        del self.steps[number:]
        for group in self.groups.values():
            if group.is_eval:
                void = group.state == "open"
            elif group.state in ("dropped", "dead"):
                void = group.version in self.void
            elif group.state in _PENDING or group.id in undone:
                void = bool({group.version, *group.tokens} & self.void)
                if group.state != "open":
                    group.state = "ready"
            else:
                continue
            if void:
                group.state, group.member = "aside", ""
                if not group.is_eval:
                    self.turns[group.index] = min(group.tries, self.turns.get(group.index, group.tries))
                    self.asked.add(group.index)
        self.admitted, self.replaced = -1, 0
        # Nothing is claimed before the next `admit`, which releases every position.
        self.released.clear()
        self.version += 1
        self.wait_for(self.store.add_version(self.run_id, self.version, step=number))
        self.step_of[self.version] = number

    # --- What always holds ---

    @invariant()
    def the_store_agrees(self) -> None:
        """Compare every group."""
        rows = self.wait_for(self.store.groups(self.run_id)) if self.run_id else []
        found = {row.id: (row.index, row.state, row.member_id, row.tries, row.takeovers) for row in rows}
        assert found == {
            group.id: (group.index, group.state, group.member, group.tries, group.takeovers)
            for group in self.groups.values()
        }

    @invariant()
    def every_position_ends_once(self) -> None:
        """Look for positions that are lost, or that two groups have; and for groups of ended members."""
        live = {name for name, is_live in self.members.items() if is_live}
        assert {group.member for group in self.groups.values()} <= {*live, ""}
        ends = Counter(dict.fromkeys(self.turns, 1))
        for group in self.groups.values():
            out_of_tries = group.state == "dropped" and group.tries >= _ADMISSION.requeue
            # A position that people want again goes on.
            gone = (group.state == "dead" or out_of_tries) and group.index not in self.turns
            if group.is_eval or not (group.state in (*_PENDING, "trained") or gone):
                continue
            if not gone or group is self.newest(group.index):
                ends[group.index] += 1
        assert ends == Counter(range(self.next_index))
        trained = Counter(name for _, names in self.steps for name in names)
        assert set(trained.values()) <= {1}

    # --- Helpers ---

    @property
    def queue(self) -> list[_Group]:
        """Groups that wait to be taken, in their order."""
        waiting = [group for group in self.groups.values() if group.state in ("open", "ready") and not group.is_eval]
        return sorted(waiting, key=lambda group: (self.step_of[group.version], group.index))

    def newest(self, index: int) -> _Group | None:
        """Return the last training group of a position that is not set aside."""
        found = [item for item in self.groups.values() if item.index == index and not item.is_eval]
        return next((item for item in reversed(found) if item.state != "aside"), None)

    @property
    def num_pending(self) -> int:
        """Training groups that are not trained yet."""
        return sum(group.state in _PENDING and not group.is_eval for group in self.groups.values())

    def holds(self, item: GroupClaim) -> bool:
        """Return whether the claim is still valid."""
        group = self.groups[item.group_id]
        return group.member == item.member_id and group.state == "open"

    def loses(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Return whether the store refuses a call because its claim is lost."""
        try:
            self.wait_for(call)
        except ClaimLostError:
            return True
        return False
