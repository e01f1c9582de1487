"""The quickstart by `serve`, `sample` and `train`, with a kill of a random one of them after every few steps."""

import asyncio
import json
import math
import re
import sys
from pathlib import Path

import attrs
import pytest
from tests.reliability.chaos import Chaos, Faults

from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "cookbook" / "quickstart" / "config.yaml"
STEPS, TASKS, GROUP = 16, 8, 8


@attrs.frozen(kw_only=True)
class Roles:
    """Members of a run as a user starts them."""

    folder: str
    members = {"serve": 1, "sample": 3, "train": 1}  # noqa: RUF012 - of a protocol

    def command(self, role):
        options = [
            f"trainer.steps={STEPS}",
            "trainer.save_steps=2",
            "trainer.stop_at_reward=null",
            f"rollout.tasks_per_step={TASKS}",
            "rollout.max_head_offpolicyness=1",
            "rollout.lease_s=6",
            "eval.every=0",
            "eval.tasks=128",
            "trackers=[console, jsonl]",
        ]
        return [sys.executable, "-m", "agentrl_core", role, str(CONFIG), *options, "--name", "r"]

    def heard(self, role, line):
        """Steps are rows of the trainer's table."""
        return {"event": "step", "work": 1} if role == "train" and re.match(r"\s+\d+\s+\d+\s", line) else None

    def is_refusal(self, code):
        return False

    def rows(self):
        """Return members, groups, records and live steps."""

        async def read():
            store = SQLiteStore.read(Path(self.folder, "runs/r/agentrl.db"))
            try:
                steps = [step for step in await store.steps("r") if not step.voided]
                return await store.members("r"), await store.groups("r"), await store.records("r"), steps
            finally:
                await store.close()

        return asyncio.run(read())

    def final_reward(self):
        """Return the held-out reward after the last step, 0 or 1 for each task, and the half of its 95 % interval."""
        lines = Path(self.folder, "runs/r/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        last = [event for line in lines if (event := json.loads(line))["event"] == "evaluated"][-1]
        count = last["records"]["heldout"]
        share = (last["rewards"]["heldout"] * count + 2) / (count + 4)  # Agresti and Coull's, which never has width 0
        return last["rewards"]["heldout"], 1.96 * math.sqrt(share * (1 - share) / (count + 4))


def carried_out(folder, **faults):
    folder.mkdir()
    roles = Roles(folder=str(folder))
    chaos = Chaos(roles, Faults(roles=("serve", "sample", "train"), every=(1, 3), **faults))
    chaos.carry_out()
    return roles, chaos


@pytest.mark.parametrize("seed", [0])
def test_a_thousand_records_survive_kills_of_every_role(tmp_path, capsys, seed):
    undisturbed, _ = carried_out(tmp_path / "undisturbed", kills=0)
    roles, chaos = carried_out(tmp_path / "killed", kills=6, seed=seed)
    members, groups, records, steps = roles.rows()
    (reward, error), (wanted, its_error) = roles.final_reward(), undisturbed.final_reward()
    states = {state: sum(member.state == state for member in members) for state in ("left", "lost", "live")}
    with capsys.disabled():
        sys.stdout.write(
            f"\n  kills {dict(chaos.kills)}, members {states}, takeovers {sum(group.takeovers for group in groups)}, "
            f"{chaos.wall_s:.0f} s\n  final reward {reward:.3f} +- {error:.3f}, undisturbed {wanted:.3f} +- "
            f"{its_error:.3f}\n"
        )
    trained = [name for step in steps for name in step.records]
    taken = [name for step in steps for name in step.groups]
    outcomes = {record.id: record.outcome for record in records}
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    assert len(taken) == len(set(taken)) == STEPS * TASKS
    assert len(trained) == len(set(trained))
    assert {outcomes[name] for name in trained} == {Outcome.SCORED}
    assert Outcome.RUNNING not in outcomes.values()
    assert states["live"] == 0
    assert states["lost"] >= 1
    assert [group.id for group in groups if group.member_id or group.state in ("open", "reserved", "taken")] == []
    in_steps = [record for record in records if record.group_id in set(taken) and record.outcome is Outcome.SCORED]
    assert len({(record.group_id, record.sample_index) for record in in_steps}) == STEPS * TASKS * GROUP
    assert reward >= wanted - math.hypot(error, its_error)
