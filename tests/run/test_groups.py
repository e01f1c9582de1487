"""Steps made of groups that teach something, tasks that come back, filters of others: in whole runs."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from agentrl_core import Trainer, workflow_context
from agentrl_core.cli.lineage_links import Lineage
from agentrl_core.errors import TrainingError
from agentrl_core.run import resume
from agentrl_core.stores.sqlite import SQLiteStore


class Asking:
    """Makes one call per episode and returns `reward(here)`."""

    def __init__(self, reward):
        self._reward = reward

    async def run(self, data, *, base_url, api_key, http_client):
        body = {"model": "default", "messages": data["messages"], "max_tokens": 2}
        headers = {"authorization": f"Bearer {api_key}"}
        (await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        return self._reward(workflow_context.get())


def flat_on(*tasks):
    """Reward all records of some tasks alike, and those of the others by their place."""
    return lambda here: 0.5 if here.task_id in tasks else here.sample_index % 2


def metrics_of(directory):
    lines = (Path(directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["metrics"] for event in map(json.loads, lines) if event["event"] == "step_finished"]


def groups_of(directory):
    with sqlite3.connect(f"file:{directory}/agentrl.db?mode=ro", uri=True) as db:
        rows = db.execute("SELECT id, idx, task_id, version, state FROM groups WHERE is_eval = 0 ORDER BY rowid")
        groups = {name: rest for name, *rest in rows.fetchall()}
        steps = [json.loads(row[0]) for row in db.execute("SELECT groups FROM steps WHERE voided = 0 ORDER BY step")]
    db.close()
    return groups, steps


SMALL = {"group_size": 2, "tasks_per_step": 2, "dynamic_sampling": True}


def test_groups_without_signal_are_replaced_until_the_step_has_its_number(project):
    config = project(name="topped", rollout=SMALL, data={"shuffle": False}, trainer={"steps": 2})
    summary = Trainer(config).train(workflow=Asking(flat_on("t1", "t2")))
    groups, steps = groups_of(summary.directory)
    # Tasks t0 to t4 in order: the first step goes on over t1 and t2 to t3, the second has t4 and t0.
    assert [[groups[name][1] for name in step] for step in steps] == [["t0", "t1", "t2", "t3"], ["t4", "t0"]]
    assert [version for _, _, version, _ in groups.values()] == [0, 0, 0, 0, 1, 1]
    first, second = metrics_of(summary.directory)
    assert [first[f"rollout/{name}"] for name in ("groups", "groups_with_signal", "groups_topped_up")] == [4, 2, 2]
    assert first["rollout/groups_dropped/zero_variance"] == 2
    assert (second["rollout/groups"], second["rollout/groups_topped_up"]) == (2, 0)
    assert summary.groups == {"sampled": 6, "dropped(zero_variance)": 2, "topped_up": 2}


def test_records_of_a_dropped_group_are_not_said_to_be_trained(project):
    config = project(name="flat", rollout=SMALL | {"dynamic_sampling": False}, data={"shuffle": False})
    folder = Path(Trainer(config, overrides=["trainer.steps=1"]).train(workflow=Asking(flat_on("t1"))).directory)
    store = SQLiteStore.read(folder / "agentrl.db")
    (run,), (step,) = asyncio.run(store.runs()), asyncio.run(store.steps("flat"))
    records = [record for record in asyncio.run(store.records("flat", is_eval=False)) if record.group_id in step.groups]
    assert len(step.groups) == 2
    assert {record.id for record in records if record.task_id == "t0"} == set(step.records)
    links = Lineage(store, run, folder)
    for record in records:
        facts = links.of_record(asyncio.run(store.episode(record.id)))
        trained = record.task_id == "t0"
        assert [use.step for use in facts.trained_by] == [1] * trained
        if not trained:
            assert facts.missing == [
                "step 1 took its group, but did not train this record: all records of the group got the reward 0.5"
            ]
    assert {item.record for item in links.of_step(1)[0].records} == set(step.records)
    asyncio.run(store.close())


def test_a_step_that_finds_too_few_goes_on_with_them_and_says_so(project, capsys):
    config = project(
        name="bounded",
        rollout={**SMALL, "max_oversampling": 2.5},
        data={"shuffle": False},
        trainer={"steps": 1},
        trackers=["console"],
    )
    summary = Trainer(config).train(workflow=Asking(flat_on("t0", "t1", "t2", "t4")))
    groups, (step,) = groups_of(summary.directory)
    assert [groups[name][1] for name in step] == ["t0", "t1", "t2", "t3", "t4"]
    assert len(groups) == 5
    told = capsys.readouterr().out
    assert "but only 1 of the 2 that a step needs had something to learn from (dropped: zero_var" in told
    assert "groups             sampled 5, topped_up 3, dropped(zero_variance) 4" in told


def test_a_task_whose_group_failed_comes_back_and_a_resumed_run_knows(project):
    broken = True

    def reward(here):
        if here.task_id == "t1" and broken:
            raise ValueError("its server is down")
        return here.sample_index % 2

    rollout = {"group_size": 2, "tasks_per_step": 2, "retries": 0}
    config = project(name="back", rollout=rollout, data={"shuffle": False}, trainer={"steps": 1})
    summary = Trainer(config).train(workflow=Asking(reward))
    assert summary.groups == {"sampled": 3, "unusable": 1, "requeued": 1}
    assert [metrics_of(summary.directory)[0][f"rollout/groups_{name}"] for name in ("unusable", "requeued")] == [1, 1]
    broken = False
    resume(Path(summary.directory), ["trainer.steps=2"], workflow=Asking(reward))
    groups, steps = groups_of(summary.directory)
    assert [[groups[name][:2] for name in step] for step in steps] == [
        [[0, "t0"], [2, "t2"]],
        [[1, "t1"], [3, "t3"]],
    ]


def test_a_straggler_does_not_hold_back_an_asynchronous_step(project):
    """The first group ends only once a step was taken without it; its own comes before it is too old."""
    stepped = asyncio.Event()

    class Slow(Asking):
        async def run(self, data, *, base_url, api_key, http_client):
            if data["id"] == "t0":
                async with asyncio.timeout(20):
                    await stepped.wait()
            return await super().run(data, base_url=base_url, api_key=api_key, http_client=http_client)

    def reward(here):
        if here.task_id == "t4":  # admitted by the first step
            stepped.set()
        return here.sample_index % 2

    rollout = {"group_size": 2, "tasks_per_step": 2, "max_head_offpolicyness": 1}
    config = project(name="async", rollout=rollout, data={"shuffle": False}, trainer={"steps": 3})
    summary = Trainer(config).train(workflow=Slow(reward))
    groups, steps = groups_of(summary.directory)
    taken = [[groups[name][0] for name in step] for step in steps]
    assert 0 not in taken[0]
    assert 0 in taken[1]
    assert max(metrics["rollout/lag_max"] for metrics in metrics_of(summary.directory)) <= 1


FILTERS = """
def fair(group, *, least: float = 0.0):
    return sum(episode.record.reward for episode in group.episodes) > least


def careless(group):
    return group.episodes[9]
"""


def test_a_function_from_a_file_is_a_filter(project):
    Path("mine.py").write_text(FILTERS, encoding="utf-8")
    config = project(name="mine", filters=[{"use": "mine.py:fair", "least": 3}], trainer={"steps": 1})
    summary = Trainer(config).train(workflow=Asking(lambda here: here.sample_index % 2))  # the sum is 2
    assert metrics_of(summary.directory)[0]["rollout/groups_dropped/fair"] == 2
    config = project(name="careless", filters=["mine.py:careless"], trainer={"steps": 1})
    with pytest.raises(TrainingError, match=r"filter 'careless' raised IndexError: .*mine\.py:7\)"):
        Trainer(config).train(workflow=Asking(flat_on()))


SHAPING = """
def thrift(group, rewards, *, cost: float = 0.1):
    tokens = [sum(len(call.output_ids) for call in episode.interactions) for episode in group.episodes]
    return [reward - cost * count for reward, count in zip(rewards, tokens, strict=True)]
"""


def test_shaped_rewards_are_trained_and_given_ones_are_kept(project):
    Path("mine.py").write_text(SHAPING, encoding="utf-8")
    config = project(
        name="shaped",
        shaping=[{"use": "mine.py:thrift", "cost": 0.5}, "rank"],
        advantage="reinforce_pp",
        trainer={"steps": 1},
    )
    summary = Trainer(config).train(workflow=Asking(lambda here: here.sample_index % 2))
    metrics = metrics_of(summary.directory)[0]
    # Each call samples one or two tokens; the ranks are those of equal numbers of calls.
    assert metrics["reward/mean"] == 0.5
    assert -0.5 <= metrics["reward/shaped_mean"] <= 0.0
    with sqlite3.connect(f"file:{summary.directory}/agentrl.db?mode=ro", uri=True) as db:
        assert {row[0] for row in db.execute("SELECT reward FROM records WHERE is_eval = 0")} == {0.0, 1.0}
    db.close()


def test_both_export_styles_train_the_same_tokens(project):
    """With one call in each record the styles agree; one at a time, episodes are equal to the last bit."""
    weights = []
    for style in ("individual", "concat"):
        config = project(
            name=style,
            rollout={"agent": {"export_style": style}, "max_concurrent_rollouts": 1},
            loss={"unit": "sequence"},
        )
        directory = Path(Trainer(config).train(workflow=Asking(flat_on())).directory)
        weights.append((directory / "checkpoints" / "step-2" / "model.safetensors").read_bytes())
        assert [metrics["batch/sequences"] for metrics in metrics_of(directory)] == [8, 8]
    assert weights[0] == weights[1]
