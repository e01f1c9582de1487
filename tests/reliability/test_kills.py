import asyncio
import sys

import pytest
from tests.reliability.account import Account
from tests.reliability.chaos import Chaos, Faults

from agentrl_core.run.membership import Watch

pytestmark = pytest.mark.slow


async def buried(store, run):
    """Watch until no dead process counts as a member any more."""
    watch = Watch(store, run.name)
    while any(member.state == "live" for member in await store.members(run.name)):
        await watch.look(0.5)
        await asyncio.sleep(0.5)  # the period of looks that a watcher has


@pytest.mark.parametrize("roles", [["sample"], ["sample", "train"]], ids="+".join)
def test_nothing_is_lost_or_trained_twice_whoever_is_killed(make_run, capsys, roles):
    async def account_of(run, store):
        await asyncio.wait_for(buried(store, run), 20 * run.lease_s)
        account = await Account.of(store, run.name)
        await store.close()
        return account

    with asyncio.Runner() as runner:
        run, store = runner.run(make_run(steps=12, tasks_per_step=8))
        chaos = Chaos(run, Faults(roles=roles))
        chaos.carry_out()
        account = runner.run(account_of(run, store))
    with capsys.disabled():
        sys.stdout.write("\n" + "".join(f"  {name:40} {value}\n" for name, value in account.table(run, chaos)))
    assert account.problems(run, chaos) == []
    if roles == ["sample"]:  # a trainer that resumes would cancel them, too
        assert {record.reason for record in account.records} <= {"", "lost"}
    assert sum(chaos.kills.values()) >= 5
    assert len(account.trained) == run.steps * run.tasks_per_step * run.group_size
