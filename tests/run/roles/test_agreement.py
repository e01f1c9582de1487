"""Options, tasks and packages in which the members of a run must agree."""

import asyncio

import attrs
import pytest

from agentrl_core import Trainer
from agentrl_core import config as configs
from agentrl_core.api.audit import Seal
from agentrl_core.errors import MemberError, UsageError
from agentrl_core.run import resume
from agentrl_core.run.components import resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.roles.agreement import check_agreement, check_tasks, new_member
from agentrl_core.stores.sqlite import SQLiteStore


@pytest.fixture
def member(project, tmp_path):
    """`member("sample", rollout={…})` is the member that such a process would become."""

    def make(role, agent="Agent", **sections):
        loaded = configs.LoadedConfig(configs.parse(project(agent, **sections)), tmp_path)
        components = resolve(loaded, role=role)
        components.close()
        return new_member(components, "r", role)

    return make


def test_members_with_the_same_config_agree(member):
    trainer, server, sampler = map(member, ("train", "serve", "sample"))
    check_agreement(server, [trainer])
    check_agreement(sampler, [server, trainer])
    check_agreement(trainer, [server, sampler])


@pytest.mark.parametrize(
    ("role", "sections", "told"),
    [
        ("sample", {"rollout": {"group_size": 3}}, r"rollout\.group_size is 3 here, and 4 in train on"),
        ("sample", {"seed": 5}, r"seed is 5 here, and 0 in"),
        ("sample", {"agent": "Constant"}, r'workflow\.use is "letters\.py:Constant" here, and "letters\.py:Agent" in'),
        ("sample", {"trainer": {"steps": 9}}, r"trainer\.steps is 9 here, and 2 in"),
        ("sample", {"scorers": {"x": "numeric"}}, r'scorers\.x\.use is "numeric" here, and not set in'),
        ("sample", {"sampling": {"stop": ["a"]}}, r'sampling\.stop is \["a"\] here, and \[\] in'),
        ("serve", {"sampling": {"temperature": 0.5}}, r"sampling\.temperature is 0\.5 here, and 1\.0 in"),
        ("serve", {"gateway": {"history": "template"}}, r'gateway\.history is "template" here, and "exact" in'),
    ],
)
def test_a_difference_that_matters_is_refused_in_one_line_with_both_values(member, role, sections, told):
    with pytest.raises(MemberError, match=f"cannot join run 'r': {told}") as refusal:
        check_agreement(member(role, **sections), [member("train")])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("role", "sections"),
    [
        ("sample", {"rollout": {"max_concurrent_rollouts": 3, "timeout_s": 5.0, "lease_s": 7.0}}),
        ("sample", {"gateway": {"history": "template"}}),
        ("sample", {"loss": {"use": "ppo"}, "trainer": {"lr": 1.0}}),
        ("serve", {"rollout": {"group_size": 3}, "seed": 0}),
        ("serve", {"gateway": {"port": 0, "pause_timeout_s": 5.0}, "engine": {"use": "embedded", "slots": 3}}),
    ],
)
def test_what_a_role_does_not_use_or_what_only_limits_it_may_differ(member, role, sections):
    check_agreement(member(role, **sections), [member("train")])


def test_another_package_version_is_refused(member):
    trainer = member("train")
    old = attrs.evolve(member("serve"), packages={"agentrl-core": "0.0.1"})
    with pytest.raises(MemberError, match=r"the package agentrl-core is 0\.0\.1 here, and \S+ in train on"):
        check_agreement(old, [trainer])


def test_a_member_agrees_with_the_last_trainer_not_with_earlier_ones(member):
    before, now = member("train", seed=1), member("train", seed=2)
    check_agreement(member("sample", seed=2), [before, now])
    with pytest.raises(MemberError, match="seed is 1 here, and 2 in"):
        check_agreement(member("sample", seed=1), [attrs.evolve(before, state="left"), attrs.evolve(now, state="lost")])


def test_a_trainer_is_refused_by_live_members_alone(member):
    sampler = member("sample", seed=1)
    check_agreement(member("train"), [attrs.evolve(sampler, state="lost")])
    with pytest.raises(MemberError, match="seed is 0 here, and 1 in sample on"):
        check_agreement(member("train"), [sampler])


def test_other_tasks_are_refused(member, tmp_path):
    trainer = member("train")
    before = (tmp_path / "tasks.jsonl").read_text(encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text(before.replace("Say a.", "Say b."), encoding="utf-8")
    with pytest.raises(MemberError, match=r"data\.train \(the tasks themselves\) is 5 tasks with the digest \w{12} "):
        check_agreement(member("sample"), [trainer])
    check_agreement(member("serve"), [trainer])


def test_a_resumed_run_notices_a_task_file_that_has_changed_but_takes_another_file(member, tmp_path):
    trainer, path = member("train"), tmp_path / "tasks.jsonl"
    check_tasks(member("train"), [trainer])
    path.rename(tmp_path / "other.jsonl")
    check_tasks(trainer, [])
    check_tasks(member("train", data={"train": "other.jsonl"}), [trainer])
    path.write_text('{"id": "new", "query": "Say z.", "answer": "z"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"data\.train: the tasks of tasks\.jsonl have changed .*5 tasks .*now 1 with"):
        check_tasks(member("train"), [trainer])


def test_a_data_file_that_changed_between_the_end_and_the_resumption_of_a_run_is_noticed(project, tmp_path):
    Trainer(project(name="r", trainer={"steps": 1})).train()
    path = tmp_path / "tasks.jsonl"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("Say e.", "Say f."), encoding="utf-8")
    with pytest.raises(UsageError, match=r"data\.train: the tasks of tasks\.jsonl have changed since run 'r'"):
        resume(tmp_path / "runs" / "r", ["trainer.steps=2"])
    path.write_text(before, encoding="utf-8")
    assert resume(tmp_path / "runs" / "r", ["trainer.steps=2"]).steps == 2


@pytest.mark.parametrize("changed", [{"seed": 5}, {"data": {"shuffle": False}}])
def test_a_run_does_not_go_on_with_its_tasks_in_another_order(member, changed):
    name = "seed" if "seed" in changed else r"data\.shuffle"
    with pytest.raises(UsageError, match=rf"{name}: run 'r' was last trained with .*, and cannot go on with"):
        check_tasks(member("train", **changed), [member("train")])
    check_tasks(member("train", trainer={"steps": 9}), [member("train")])


def test_a_start_that_ends_before_its_first_step_is_sealed_and_a_refused_one_changes_nothing(
    project, tmp_path, monkeypatch
):
    Trainer(project(name="r", trainer={"steps": 1})).train()
    folder = RunDirectory(tmp_path / "runs" / "r")
    before = folder.snapshot.read_bytes()
    with pytest.raises(UsageError, match="seed: run 'r' was last trained with 0"):
        resume(folder.path, ["trainer.steps=2", "seed=5"])
    assert folder.snapshot.read_bytes() == before

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("agentrl_core.run.trainer.InProcessSampling", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resume(folder.path, ["trainer.steps=2"])
    assert folder.snapshot.read_bytes() != before
    store = SQLiteStore(path=folder.path / "agentrl.db")
    seals = asyncio.run(store.seals("r"))
    asyncio.run(store.close())
    assert [seal.kind for seal in map(Seal.of, seals)][-2:] == ["resume", "end"]
    assert resume(folder.path).steps == 2
