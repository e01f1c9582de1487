"""AReaL's workflows, from the released files with their import lines changed: episodes and whole training steps."""

import difflib
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from agentrl_areal.api.cli_args import GenerationHyperparameters
from agentrl_areal.hooks import STATS_FILE
from agentrl_areal.utils.hf_utils import load_hf_tokenizer
from agentrl_core import Trainer
from agentrl_core.errors import ConfigError
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import FinishReason, Outcome
from agentrl_testing.policy import toy_policy

FILES = (
    "workflow/rlvr.py",
    "workflow/multi_turn.py",
    "workflow/openai/math_agent.py",
    "workflow/langchain/math_agent.py",
    "workflow/anthropic/math_agent.py",
    "workflow/anthropic/claude_math_agent.py",
    "workflow/openai_agent/math_agent.py",
)
GSM8K = "areal.reward.gsm8k.gsm8k_reward_fn"
REWARDS = '''
def share(prompt, completions, prompt_ids, completion_ids, answer, **row):
    """Share of odd ids."""
    assert isinstance(prompt, str) and isinstance(completions, str) and row["messages"]
    return sum(token % 2 for token in completion_ids) / len(completion_ids)


def now_and_then(prompt, completions, prompt_ids, completion_ids, **row):
    return float(completion_ids[0] % 4 == 0)


def right(prompt, completions, prompt_ids, completion_ids, answer, **row):
    return float(answer in completions)
'''


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """The module `areal_tests_rewards`, which other processes can import."""
    tmp_path.joinpath("areal_tests_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("areal_tests_rewards")
    del sys.modules["areal_tests_rewards"]


@pytest.fixture
def load(migrate):
    """`load("workflow/rlvr.py")`: a released file as a module, its import lines changed."""
    loaded = []

    def one(name):
        path = migrate(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
        loaded.append(path.stem)
        spec.loader.exec_module(module)
        return module

    yield one
    for name in loaded:
        del sys.modules[name]


@pytest.fixture(params=["released", "ours"])
def workflow_class(request):
    """`workflow_class("rlvr", "RLVRWorkflow")`: AReaL's class, or the one of this package."""
    if request.param == "ours":
        return lambda file, name: getattr(importlib.import_module(f"agentrl_areal.workflow.{file}"), name)
    load = request.getfixturevalue("load")
    return lambda file, name: getattr(load(f"workflow/{file}.py"), name)


def watched(workflow):
    """The workflow, and a list of what it returns."""
    run, returned = workflow.arun_episode, []

    async def arun_episode(engine, data):
        returned.append(await run(engine, data))
        return returned[-1]

    workflow.arun_episode = arun_episode
    return workflow, returned


@pytest.mark.parametrize("name", FILES)
def test_only_import_lines_are_changed_and_none_is_left(released, name):
    before, after = released.read(name).splitlines(), released.migrated(name).splitlines()
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert bool(changes) == (name != "workflow/openai_agent/math_agent.py")
    for line in changes:
        assert re.match(r"[+-] +(from|import) (agentrl_)?areal\b", line)
    assert not [line for line in after if re.match(r"\s*(from|import) areal\b", line)]


@pytest.mark.skipif(sys.platform != "linux", reason="the sed of other systems takes -i another way")
def test_the_rule_of_the_readme_is_what_sed_makes_of_it(released, tmp_path):
    [command] = re.findall(r"^(sed -E -i .*)my_workflow\.py$", released.readme, re.MULTILINE)
    made_up = "import areal\n    import areal\nfrom areal import x\nimport areal.utils.logging as l\nareal = 1\n"
    made_up += "from areal_own import y\n# from areal\nfrom areal.api import (\n    areal,\n)\nimport arealx\n"
    for text in (made_up, *map(released.read, FILES)):
        path = tmp_path / "my_workflow.py"
        path.write_text(text)
        subprocess.run(f"{command}{path}", shell=True, check=True)
        assert path.read_text() == released.rule(text)
    assert released.rule("import areal") == "import agentrl_areal as areal"
    assert released.rule(made_up).count("agentrl_areal") == 5


def test_a_reply_is_returned_as_it_was_sampled_with_the_functions_reward(world, workflow_class, rewards, row):
    workflow, returned = watched(
        workflow_class("rlvr", "RLVRWorkflow")(
            reward_fn=rewards.right,
            gconfig=GenerationHyperparameters(max_new_tokens=30),
            tokenizer=load_hf_tokenizer(str(world.folder)),
        )
    )
    for said, reward in (("it is 4", 1.0), ("it is 5", 0.0)):
        world.says(said)
        [episode] = world.run(workflow, row)
        [call], entry = episode.interactions, world.engine.log[-1]
        row_ids = [*entry.request.prompt_ids, *entry.ids]
        tensors = {name: value.tolist() for name, value in returned[-1].items()}
        assert tensors["input_ids"] == [row_ids] == [list(episode.full_ids(call))]
        assert tensors["loss_mask"] == [[0] * len(entry.request.prompt_ids) + [1] * len(entry.ids)]
        assert tensors["logprobs"][0][-len(entry.ids) :] == pytest.approx(entry.logprobs, abs=1e-5)
        assert tensors["versions"] == [[-1] * len(entry.request.prompt_ids) + [0] * len(entry.ids)]
        assert tensors["rewards"] == [reward]
        assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, reward)
        assert (call.output_ids, call.logprobs) == (entry.ids, entry.logprobs)


def test_further_tries_go_on_from_the_exact_ids(world, workflow_class, rewards, row):
    workflow, returned = watched(
        workflow_class("multi_turn", "MultiTurnWorkflow")(
            reward_fn=rewards.right,
            gconfig=GenerationHyperparameters(max_new_tokens=30),
            tokenizer=load_hf_tokenizer(str(world.folder)),
            max_turns=3,
            turn_discount=0.5,
        )
    )
    for replies, reward in ((("5", "no", "4"), 0.25), (("4",), 1.0), (("5", "6", "7"), 0.0)):
        world.engine.log.clear()
        world.says(*replies)
        [episode] = world.run(workflow, row)
        calls = episode.interactions
        assert [call.parent for call in calls] == [None, *[call.id for call in calls[:-1]]]
        for call, entry in zip(calls, world.engine.log, strict=True):
            assert episode.full_ids(call) == (*entry.request.prompt_ids, *entry.ids)
        tensors = {name: value[0].tolist() for name, value in returned[-1].items() if name != "rewards"}
        assert tensors["input_ids"] == list(episode.full_ids(calls[-1]))
        trained = [token for token, kept in zip(tensors["input_ids"], tensors["loss_mask"], strict=True) if kept]
        assert trained == [token for entry in world.engine.log for token in entry.ids]
        assert returned[-1]["rewards"].tolist() == [reward]
        assert (len(calls), episode.record.reward) == (len(replies), reward)
        assert all("Your answer is either wrong" in prompt for prompt in world.prompts[1:])


def test_the_ready_made_workflows_ask_and_return_what_the_released_ones_do(world, load, rewards, row):
    """With a reply that was cut at its length, too: what is put behind it must be the same."""
    from agentrl_areal.workflow import multi_turn, rlvr

    tokenizer, seen = load_hf_tokenizer(str(world.folder)), []
    options = {"reward_fn": rewards.right, "tokenizer": tokenizer}
    cut = GenerationHyperparameters(max_new_tokens=3)
    world.says("56", "no answer", "4")
    for modules in ((rlvr, multi_turn), (load("workflow/rlvr.py"), load("workflow/multi_turn.py"))):
        world.engine.log.clear()
        once = watched(modules[0].RLVRWorkflow(gconfig=cut, **options))
        often = watched(modules[1].MultiTurnWorkflow(gconfig=cut, max_turns=3, turn_discount=0.9, **options))
        for workflow, _ in (once, often):
            world.run(workflow, row)
        asked = [attrs_of(entry.request.sampling) | {"prompt": entry.request.prompt_ids} for entry in world.engine.log]
        told = [{name: value.tolist() for name, value in item[1][0].items()} for item in (once, often)]
        seen.append((asked, told))
    assert seen[0] == seen[1]


def attrs_of(sampling):
    """But for the seed, which is another for each episode."""
    return {name: getattr(sampling, name) for name in ("temperature", "max_tokens", "min_tokens", "stop_token_ids")}


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """The folder of a tiny policy."""
    return toy_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def train(tmp_path, rewards, policy, monkeypatch):
    """Two steps of two groups of four; returns the summary and the episodes of training and evaluation."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"t{n}", "messages": [{"role": "user", "content": f"{n} + 2?"}], "answer": "4"} for n in range(4)]
    tmp_path.joinpath("tasks.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in rows))

    def run(workflow, options, gconfig, **more):
        config = {
            "model": {"path": str(policy)},
            "data": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
            "workflow": str(workflow),
            "workflow_kwargs": options,
            "gconfig": {"n_samples": 4, **gconfig},
            "eval_gconfig": {"temperature": 0.5, "n_samples": 1},
            "rollout": {"tasks_per_step": 2},
            "trainer": {"steps": 2, "lr": 1e-3},
            "eval": {"every": 0, "tasks": 2},
            "trackers": [],
            **more,
        }
        tmp_path.joinpath("config.yaml").write_text(json.dumps(config))
        summary = Trainer("config.yaml").train()
        store = SQLiteStore(path=tmp_path / summary.directory / "agentrl.db")

        async def episodes():
            try:
                found = [await store.episode(record.id) for record in await store.records(summary.name)]
            finally:
                await store.close()
            return found

        import asyncio

        found = asyncio.run(episodes())
        stats = [json.loads(line) for line in (tmp_path / summary.directory / STATS_FILE).read_text().splitlines()]
        evaluated = [episode for episode in found if episode.record.is_eval]
        return summary, [episode for episode in found if not episode.record.is_eval], evaluated, stats

    return run


def of_config(source, migrate, file, name):
    return f"{migrate(f'workflow/{file}.py')}:{name}" if source == "released" else f"areal_{file}"


@pytest.mark.parametrize("source", ["released", "ours"])
def test_one_reply_per_prompt_trains_as_it_was_sampled(train, migrate, rewards, source):
    workflow = of_config(source, migrate, "rlvr", "RLVRWorkflow")
    options = {"reward_fn": "areal_tests_rewards.share"}
    summary, episodes, evaluated, stats = train(
        workflow, options, {"max_new_tokens": 12, "min_new_tokens": 5, "greedy": False, "top_k": 100_000_000}
    )
    assert (summary.status, summary.steps) == ("finished", 2)
    assert len(episodes) == 2 * 2 * 4
    for episode in episodes:
        [call] = episode.interactions
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        assert 5 <= len(call.output_ids) <= 12
        assert (call.sampling.temperature, call.sampling.top_k) == (1.0, 0)
        assert episode.record.reward == pytest.approx(rewards.share("", "", [], call.output_ids, "4", messages=[1]))
        assert call.requested == {}
    assert {episode.interactions[0].sampling.temperature for episode in evaluated} == {0.5}
    assert summary.trained_tokens == summary.exact_tokens
    assert summary.trained_tokens == sum(len(episode.interactions[0].output_ids) for episode in episodes)
    means = [line["rollout/reward"] for line in stats if "rollout/reward" in line]
    assert sum(means) / len(means) == pytest.approx(sum(episode.record.reward for episode in episodes) / len(episodes))
    assert sum(line.get("eval-rollout/reward__count", 0) for line in stats) == len(evaluated) == 4


@pytest.mark.parametrize("source", ["released", "ours"])
def test_a_model_that_the_run_makes_has_the_tokenizer(train, migrate, source):
    workflow = of_config(source, migrate, "rlvr", "RLVRWorkflow")
    options = {"reward_fn": "areal_tests_rewards.share"}
    model = {"use": "tiny", "size": "0.1M"}
    summary, episodes, _, _ = train(workflow, options, {"max_new_tokens": 12}, model=model)
    assert set(summary.outcomes) == {"scored"}
    assert summary.trained_tokens == summary.exact_tokens > 0
    for episode in episodes:
        [call] = episode.interactions
        # the constructor read the end of a turn from the tokenizer
        assert call.finish_reason is FinishReason.LENGTH or call.output_ids[-1] in call.sampling.stop_token_ids


def test_an_option_that_no_constructor_takes_is_refused_with_a_model_that_the_run_makes(train):
    options = {"reward_fn": "areal_tests_rewards.share", "max_turn": 3}
    with pytest.raises(ConfigError, match="max_turn"):
        train("areal_rlvr", options, {}, model={"use": "tiny"})


@pytest.mark.parametrize("source", ["released", "ours"])
def test_several_tries_train_as_one_chain(train, migrate, rewards, source):
    workflow = of_config(source, migrate, "multi_turn", "MultiTurnWorkflow")
    options = {"reward_fn": "areal_tests_rewards.now_and_then", "max_turns": 3, "turn_discount": 0.5}
    summary, episodes, _, _ = train(workflow, options, {"max_new_tokens": 6})
    assert (summary.status, summary.steps) == ("finished", 2)
    turns = set()
    for episode in episodes:
        calls = episode.interactions
        turns.add(len(calls))
        assert [call.parent for call in calls] == [None, *[call.id for call in calls[:-1]]]
        final = rewards.now_and_then("", "", [], calls[-1].output_ids)
        assert episode.record.reward == final * 0.5 ** (len(calls) - 1)
        assert len(calls) == 3 or final
    assert len(turns) > 1
    assert summary.trained_tokens == summary.exact_tokens > 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"workflow_kwargs": {"reward_fn": "areal_tests_rewards.shar"}}, "workflow.reward_fn: .*shar"),
        ({"workflow_kwargs": {"reward_fn": "areal.reward.nothing.x"}}, "workflow.reward_fn: .*agentrl_areal.reward"),
        ({"workflow_kwargs": {"reward_fn": "areal.reward.gsm8k.gsm8k_reward_fn", "gconfig": {"stop": "a"}}}, "stop"),
        (
            {"workflow_kwargs": {"reward_fn": "areal.reward.gsm8k.gsm8k_reward_fn", "gconfig": {"max_new": 3}}},
            "max_new",
        ),
        ({"workflow_kwargs": {"reward_fn": "areal.reward.gsm8k.gsm8k_reward_fn", "gconfig": 3}}, "gconfig"),
    ],
)
def test_what_a_constructor_cannot_be_given_is_told_before_anything_starts(train, more, told):
    options = {"reward_fn": "areal_tests_rewards.share"}
    with pytest.raises(ConfigError, match=told):
        train("areal_rlvr", options, {}, **more)


def test_from_python_the_call_is_areals(train, tmp_path, rewards, policy, migrate):
    """`Trainer.train` takes the keyword arguments of an AReaL training script."""
    sys.path.insert(0, str(tmp_path))
    try:
        path = migrate("workflow/rlvr.py")
        workflow = importlib.import_module(path.stem).RLVRWorkflow
        config = {
            "model": {"path": str(policy)},
            "data": {"train": str(tmp_path / "tasks.jsonl")},
            "rollout": {"tasks_per_step": 1, "group_size": 2},
            "trainer": {"steps": 1, "lr": 1e-3},
            "eval": {"every": 0},
            "trackers": [],
        }
        options = {
            "reward_fn": "areal_tests_rewards.share",
            "gconfig": GenerationHyperparameters(max_new_tokens=5),
            "tokenizer": str(policy),
            "enable_thinking": False,
        }
        summary = Trainer(config).train(workflow=workflow, workflow_kwargs=options)
    finally:
        sys.path.remove(str(tmp_path))
    assert summary.outcomes == {"scored": 2}
    assert summary.trained_tokens == summary.exact_tokens <= 10
