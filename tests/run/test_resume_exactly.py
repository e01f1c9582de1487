"""A resumed run keeps all work from before a kill; each test names the threads in which users asked for it.

The kills are real and come at places, not at times: parts of the run end its process where the test has armed them.
"""

import asyncio
import json
import os
import re
from collections import Counter
from pathlib import Path

import attrs
import pytest
import yaml
from tests.run.test_training import BROKEN

from agentrl_core import Trainer
from agentrl_core.errors import RunError
from agentrl_core.rollout.order import TaskOrder
from agentrl_core.run import resume
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Task

PARTS = '''
"""Parts of a run that kill it at places that are armed, each once, and wait for each other at gates."""
import asyncio
import os
import signal
from pathlib import Path

from agentrl_core import workflow_context
from letters import ask


def reach(place):
    if Path("gates", place).exists():
        Path("gates", place).read_text()  # until the episode at the other end is there
    if Path("armed", place).exists():
        Path("armed", place).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Agent:
    """Rewards the records of a group differently, unless its task is flat."""

    async def run(self, data, *, base_url, api_key, http_client):
        slot = workflow_context.get().sample_index
        place = f"episode-{data['id']}-{slot}"
        if Path("gates", place).exists():
            await asyncio.to_thread(Path("gates", place).write_text, "here")
            await asyncio.Event().wait()
        reach(place)
        await ask(data, base_url, api_key, http_client)
        return 0.5 if data.get("flat") else slot % 2


def passing(group):
    reach(f"filter-{group.episodes[0].record.task_id}")
    return True


class Watching:
    def __getattr__(self, event):
        return lambda *_: None

    def step_finished(self, report):
        reach(f"told-{report.step}")
'''


@attrs.frozen
class Stored:
    """Rows of the run `r`."""

    steps: list
    groups: dict
    records: list

    @classmethod
    def read(cls, name="r"):
        async def rows():
            store = SQLiteStore.read(Path("runs") / name / "agentrl.db")
            try:
                groups = {group.id: group for group in await store.groups(name)}
                return cls(await store.steps(name), groups, await store.records(name))
            finally:
                await store.close()

        return asyncio.run(rows())

    @property
    def live(self):
        return [step for step in self.steps if not step.voided]

    @property
    def positions(self):
        """Positions that each live step took."""
        return [[self.groups[name].index for name in step.groups] for step in self.live]

    @property
    def trained(self):
        """Records that live steps trained; none twice."""
        names = [name for step in self.live for name in step.records]
        assert len(names) == len(set(names))
        return set(names)

    @property
    def scored(self):
        return {record.id for record in self.records if record.outcome is Outcome.SCORED}


def write_config(project, *, flat=(), tasks=12, data=None, rollout=None, trainer=None):
    """Write the config of the run `r`, whose tasks t0, t1, … come in this order, one episode at a time."""
    rows = [{"id": f"t{n}", "query": f"Say {n}.", "flat": f"t{n}" in flat} for n in range(tasks)]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("parts.py").write_text(PARTS, encoding="utf-8")
    Path("armed").mkdir()
    Path("gates").mkdir()
    config = project(
        workflow="parts.py:Agent",
        filters=["zero_variance", "parts.py:passing"],
        trackers=["jsonl", "parts.py:Watching"],
        data={"shuffle": False} | (data or {}),
        rollout={"group_size": 2, "max_concurrent_rollouts": 1} | (rollout or {}),
        trainer={"steps": 4} | (trainer or {}),
    )
    Path("config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.fixture
def agentrl(warm):
    """Run the command line to its end; return exit code and output."""

    def run(*arguments):
        with warm.program(*arguments, COLUMNS="200") as program:
            return program.communicate()[0], program.returncode

    return run


@pytest.fixture
def dies(agentrl):
    """Run a command that is killed at a place."""

    def run(*arguments, at):
        Path("armed", at).touch()
        output, code = agentrl(*arguments)
        assert code == -9, output
        assert not list(Path("armed").iterdir())

    return run


@pytest.fixture
def ends(agentrl):
    """Run a command to its good end; return its output."""

    def run(*arguments):
        output, code = agentrl(*arguments)
        assert code == 0, output
        return output

    return run


BEGIN, RESUME = ("run", "config.yaml", "--name", "r"), ("runs", "resume", "r")


def kill_with_untrained_records(dies):
    """Kill a run after two of four steps: it has sampled t4, and one of two records of t5, with version 1."""
    os.mkfifo("gates/gate")
    Path("gates", "filter-t2").symlink_to("gate")
    Path("gates", "episode-t5-1").symlink_to("gate")
    dies(*BEGIN, at="told-2")
    for name in ("filter-t2", "episode-t5-1", "gate"):
        Path("gates", name).unlink()
    before = Stored.read()
    untrained = before.scored - before.trained
    assert before.positions == [[0, 1], [2, 3]]
    assert Counter(record.task_id for record in before.records if record.id in untrained) == {"t4": 2, "t5": 1}
    return before


@pytest.mark.slow
def test_records_that_were_finished_and_not_trained_train_after_a_restart(project, dies, ends):
    """Asked for in verl#4199 and OpenRLHF#1322, where such records were lost."""
    write_config(project, rollout={"max_head_offpolicyness": 1})
    before = kill_with_untrained_records(dies)
    ends(*RESUME)
    after = Stored.read()
    assert after.positions == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert before.scored <= after.trained == after.scored
    slots = Counter((record.group_id, record.sample_index) for record in after.records if record.id in after.scored)
    assert set(slots.values()) == {1}, "no finished slot is sampled once more"
    assert Counter(record.outcome for record in after.records) == {Outcome.SCORED: 16, Outcome.CANCELLED: 1}


@pytest.mark.slow
def test_what_was_dropped_as_stale_neither_returns_nor_holds_the_position_back(project, dies, ends):
    """Asked for in TRL#7274 and TRL#7294: the cursor of a resumed run stayed at samples that were too old."""
    write_config(project, rollout={"max_head_offpolicyness": 1})
    kill_with_untrained_records(dies)
    dies(*RESUME, "rollout.max_head_offpolicyness=0", at="filter-t7")  # in a step that has dropped t4 and t5
    assert Stored.read().positions == [[0, 1], [2, 3]]
    dies(*RESUME, at="told-3")
    assert "resumed after step 3, at group 8" in ends(*RESUME, "trackers=[console]")
    after = Stored.read()
    assert after.positions == [[0, 1], [2, 3], [4, 5, 6, 7], [8, 9]]
    assert [step.metrics["rollout/groups_stale"] for step in after.live] == [0, 0, 2, 0]
    assert {record.task_id for record in after.records if record.id in after.trained} == {
        f"t{n}" for n in (0, 1, 2, 3, 6, 7, 8, 9)
    }
    assert len(after.groups) == 10, "every position was claimed once"


@pytest.mark.slow
def test_the_number_of_epochs_is_exact_across_kills(project, dies, ends):
    """With a checkpoint after every second step, so that steps are repeated, and sampling ahead."""
    tasks, steps = 5, 5
    write_config(
        project,
        tasks=tasks,
        data={"shuffle": True},
        rollout={"max_head_offpolicyness": 1},
        trainer={"steps": steps, "save_steps": 2},
    )
    order = TaskOrder([Task(id=f"t{n}", data={}) for n in range(tasks)], seed=0)
    dies(*BEGIN, at=f"episode-{order[3].id}-1")
    dies(*RESUME, at=f"filter-{order[4].id}")
    dies(*RESUME, at="told-3")
    dies(*RESUME, at=f"filter-{order[8].id}")
    ends(*RESUME)
    after = Stored.read()
    assert [step.step for step in after.live] == [1, 2, 3, 4, 5]
    assert any(step.voided for step in after.steps)
    assert sorted(position for step in after.positions for position in step) == list(range(2 * tasks))
    took = [after.groups[name] for step in after.live for name in step.groups]
    assert all(group.task_id == order[group.index].id for group in took)
    assert Counter(group.task_id for group in took) == {f"t{n}": 2 for n in range(tasks)}
    assert len(after.trained) == 2 * 2 * tasks


@pytest.mark.slow
def test_filters_and_dynamic_sampling_go_on_where_they_were(project, dies, ends):
    """A kill between verdicts and step: the same groups are judged again, and none is replaced twice."""
    write_config(project, flat=("t1", "t2"), rollout={"dynamic_sampling": True}, trainer={"steps": 2})
    dies(*BEGIN, at="filter-t3")
    before = Stored.read()
    assert (before.steps, len(before.scored)) == ([], 8)
    ends(*RESUME)
    after = Stored.read()
    assert after.positions == [[0, 1, 2, 3], [4, 5]]
    first, second = (step.metrics for step in after.live)
    assert (first["rollout/groups_dropped/zero_variance"], first["rollout/groups_topped_up"]) == (2, 2)
    assert second["rollout/groups_topped_up"] == 0
    assert set(after.live[0].groups) == set(before.groups)
    assert len(after.scored) == 12


@pytest.mark.slow
def test_a_data_file_that_changed_between_kill_and_resume_is_noticed(project, agentrl, dies, ends):
    write_config(project)
    dies(*BEGIN, at="episode-t4-0")
    before, text = Stored.read(), Path("tasks.jsonl").read_text(encoding="utf-8")
    Path("tasks.jsonl").write_text(text.replace("Say 9.", "Say 99."), encoding="utf-8")
    output, code = agentrl(*RESUME)
    assert code == 2
    assert re.search(r"data\.train: the tasks of tasks\.jsonl have changed since run 'r' was last trained", output)
    assert "put the file back" in output
    after = Stored.read()
    assert (after.steps, after.groups.keys(), after.scored) == (before.steps, before.groups.keys(), before.scored)
    Path("tasks.jsonl").write_text(text, encoding="utf-8")
    ends(*RESUME)
    assert Stored.read().positions == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Asking:
    """Makes one call per episode; its groups have something to teach, or not."""

    def __init__(self, *, uneven):
        self._uneven, self._count = uneven, 0

    async def run(self, data, *, base_url, api_key, http_client):
        self._count += 1
        number = self._count
        body = {"model": "default", "messages": data["messages"], "max_tokens": 2}
        headers = {"authorization": f"Bearer {api_key}"}
        (await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        return float(number) if self._uneven else 0.5


def test_steps_without_signal_are_counted_across_a_resumption(project):
    config = project(name="r", trainer={"steps": 1, "max_steps_without_signal": 2})
    folder = Path(Trainer(config).train(workflow=Asking(uneven=False)).directory)
    with pytest.raises(RunError, match="2 steps in a row had nothing to learn from"):
        resume(folder, ["trainer.steps=9"], workflow=Asking(uneven=False))
    assert [step.step for step in Stored.read().live] == [1, 2]


def test_a_step_with_signal_before_a_resumption_ends_the_count(project):
    config = project(name="r", trainer={"steps": 1, "max_steps_without_signal": 2})
    folder = Path(Trainer(config).train(workflow=Asking(uneven=False)).directory)
    resume(folder, ["trainer.steps=2"], workflow=Asking(uneven=True))
    with pytest.raises(RunError, match="2 steps in a row had nothing to learn from"):
        resume(folder, ["trainer.steps=9"], workflow=Asking(uneven=False))
    assert [step.step for step in Stored.read().live] == [1, 2, 3, 4]


def test_voided_steps_without_signal_do_not_count(project):
    config = project("Constant", name="r", trainer={"steps": 9, "save_steps": 2, "max_steps_without_signal": 3})
    with pytest.raises(RunError, match="3 steps in a row had nothing"):
        Trainer(config).train()
    for limit, last in ((3, 3), (4, 4)):
        with pytest.raises(RunError, match=f"{limit} steps in a row had nothing"):
            resume(Path("runs/r"), [f"trainer.max_steps_without_signal={limit}"])  # from step 2, the last one saved
        assert [step.step for step in Stored.read().live] == list(range(1, last + 1))


def test_steps_that_are_not_finite_are_counted_across_a_resumption(project):
    Path("broken.py").write_text(BROKEN, encoding="utf-8")
    trainer = {"steps": 1, "non_finite": "skip", "max_steps_not_finite": 2}
    Trainer(project(name="r", loss={"use": "broken.py:Loss"}, trainer=trainer)).train()
    with pytest.raises(RunError, match="2 steps in a row had NaN or infinite numbers"):
        resume(Path("runs/r"), ["trainer.steps=4"])
    assert [step.step for step in Stored.read().live] == [1, 2]
