"""The frame around servers and samplers: a member that was declared lost comes back by itself."""

import asyncio

import attrs
import pytest

from agentrl_core import config as configs
from agentrl_core.errors import MemberError, RunError
from agentrl_core.run.components import resolve
from agentrl_core.run.roles.agreement import new_member
from agentrl_core.run.roles.frame import take_part


@pytest.fixture
def store(stored):
    """The store of a run with a live trainer, whose config is `config.yaml`."""
    path, store = stored("running", rollout={"lease_s": 0.4})
    components = resolve(configs.load(path, name="r"), role="train")
    asyncio.run(store.join(attrs.evolve(new_member(components, "r", "train"), lease_s=1000.0)))
    components.close()
    return store


async def end_training(store, status, error=""):
    """End the run as its trainer does."""
    (trainer,) = [member.id for member in await store.members("r", live=True) if member.role == "train"]
    await store.update_run("r", status=status, error=error, member_id=trainer)
    await store.leave(trainer)


class Idle:
    """Work of a member that others declare lost as often as is said; then its run ends."""

    url = ""

    def __init__(self, store, losses):
        self._store, self._losses = store, losses

    def begin(self, membership):
        if not self._losses:
            asyncio.run(end_training(self._store, "finished"))
            return
        self._losses.pop()
        (member,) = membership.members
        beats = 0
        while not asyncio.run(self._store.declare_lost(member.id, beats=beats)):
            beats += 1

    def report(self):
        return {}

    async def look(self, members):
        return False

    def finish(self):
        pass

    def close(self):
        pass


def servers(store):
    return [member.state for member in asyncio.run(store.members("r")) if member.role == "serve"]


def test_a_member_that_was_declared_lost_joins_again(store):
    losses, told = [1, 1], []
    take_part("serve", "config.yaml", [], "r", lambda joining: Idle(store, losses), told.append)
    assert servers(store) == ["lost", "lost", "left"]
    again = [line for line in told if "was declared lost" in line]
    assert [line.rpartition("; ")[2] for line in again] == ["joining again (1 of 3)", "joining again (2 of 3)"]
    assert told[-1] == "run 'r' has ended: finished"


def test_a_run_that_failed_ends_its_members_with_its_error(store):
    class Failing(Idle):
        def begin(self, membership):
            asyncio.run(end_training(self._store, "failed", "the loss is NaN"))

    with pytest.raises(RunError, match="run 'r' has failed: the loss is NaN"):
        take_part("serve", "config.yaml", [], "r", lambda joining: Failing(store, []), lambda _: None)
    assert servers(store) == ["left"]


def test_a_member_that_is_lost_again_and_again_gives_up(store):
    with pytest.raises(MemberError, match=r"was declared lost, .*start it again, with a longer lease"):
        take_part("serve", "config.yaml", [], "r", lambda joining: Idle(store, [1] * 9), lambda _: None)
    assert servers(store) == ["lost"] * 4
