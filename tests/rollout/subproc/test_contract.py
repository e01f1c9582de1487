"""An agent meets the same contract in the run's process, in a worker, and in another interpreter."""

import pytest

MODES = ("inline", "subproc", "python")

REWARDS = """
class Number:
    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        return 0.25


class ById:
    def run(self, data, **extra_kwargs):
        ids = [ask(data, extra_kwargs["base_url"], extra_kwargs["api_key"])["id"] for _ in range(2)]
        return {ids[0]: 0.25, ids[1]: True}


class ByTurn:
    async def run(self, data, base_url, api_key):
        ask(data, base_url, api_key)
        return {0: 0.25}


def nothing(data, *, base_url, api_key):
    ask(data, base_url, api_key)
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "reward", "rewards"),
    [("Number", 0.25, []), ("ById", 1.25, [0.25, 1.0]), ("ByTurn", 0.25, [0.25]), ("nothing", 0.5, [])],
)
def test_every_form_of_reward_arrives(agents, play, mode, name, reward, rewards):
    (record,) = play(f"{agents(REWARDS)}:{name}", mode)
    assert (record.outcome.value, record.reward) == ("scored", reward), record.detail
    assert list(record.rewards.values()) == rewards


FAILURES = """
class Unable(ValueError):
    pass


def raises(data, base_url, api_key):
    raise Unable("no luck\\nat all")


def exits(data, base_url, api_key):
    raise SystemExit(3)


def text(data, base_url, api_key):
    ask(data, base_url, api_key)
    return "one"


def not_finite(data, base_url, api_key):
    ask(data, base_url, api_key)
    return float("nan")


def unknown_id(data, base_url, api_key):
    ask(data, base_url, api_key)
    return {"chatcmpl-other": 1.0}


def no_call(data, base_url, api_key):
    return 1.0


def echoes(data, base_url, api_key):
    raise ValueError(f"bad key {api_key}")


CASES = [raises, exits, text, not_finite, unknown_id, no_call, echoes]


class Waits:
    async def run(self, data, *, base_url, api_key):
        return CASES[int(data["id"][1:])](data, base_url, api_key)


class Blocks:
    def run(self, data, *, base_url, api_key):
        return CASES[int(data["id"][1:])](data, base_url, api_key)
"""


@pytest.mark.parametrize("name", ["Waits", "Blocks"])
def test_what_an_agent_does_wrong_is_told_as_inline(agents, play, name):
    where = f"{agents(FAILURES)}:{name}"
    told = {mode: play(where, mode, count=7) for mode in MODES}
    for records in zip(*(told[mode] for mode in MODES), strict=True):
        assert len({(record.outcome, record.reason) for record in records}) == 1
        (detail,) = {record.detail.split("; expected")[0] for record in records}
        assert detail
    assert [record.reason for record in told["subproc"]] == [
        "Unable", "SystemExit", "reward_type", "not_finite", "unknown_interaction", "no_llm_call", "ValueError",
    ]  # fmt: skip


def test_an_episode_error_keeps_its_reason(agents, play):
    code = """
from agentrl_core.errors import EpisodeError

def run(data):
    raise EpisodeError("bored", "nothing to do")
"""
    (record,) = play(f"{agents(code)}:run")
    assert (record.outcome.value, record.reason, record.detail) == ("rejected", "bored", "nothing to do")


ARGUMENTS = """
import json
from pathlib import Path


class Agent:
    def run(self, data, **extra_kwargs):
        told = {name: str(value) for name, value in extra_kwargs.items()}
        variables = {name: text for name, text in os.environ.items() if name.startswith(("OPENAI", "ANTHROPIC", "ZOO"))}
        Path(data["id"]).write_text(json.dumps([told, variables, "http_client" in extra_kwargs]))
        os.environ["ZOO_LEFT"] = "behind"
        os.environ.pop("ZOO_KEPT", None)
        os.chdir("/")
        return 1.0 if ask(data) else 0.0
"""


@pytest.mark.parametrize("mode", ["subproc", "python"])
def test_each_episode_gets_its_own_arguments_and_variables(agents, play, folder, mode, monkeypatch):
    import json

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.setattr("agentrl_core.concurrency.secrecy._withheld", {"ZOO_ADMIN_KEY"})
    monkeypatch.setenv("ZOO_ADMIN_KEY", "the run's alone")
    records = play(f"{agents(ARGUMENTS)}:Agent", mode, count=2, env={"ZOO_KEPT": "a lion"})
    seen = []
    for record in records:
        assert record.outcome.value == "scored", record.detail
        told, variables, has_client = json.loads((folder / record.task_id).read_text())
        assert has_client == (mode == "subproc")
        assert (told["record_id"], told["is_eval"]) == (record.id, "False")
        assert variables == {
            "OPENAI_BASE_URL": f"{told['base_url']}/v1",
            "OPENAI_API_KEY": told["api_key"],
            "ANTHROPIC_BASE_URL": told["base_url"],
            "ANTHROPIC_API_KEY": told["api_key"],
            "ZOO_KEPT": "a lion",
        }
        seen.append(told["base_url"])
    assert seen[0] != seen[1]


SDK = """
from openai import AsyncOpenAI
from agentrl_core import workflow_context


class Agent:
    async def run(self, data, *, http_client):
        here = workflow_context.get()
        assert here.http_client is http_client is workflow_context.get_httpx_client()
        assert (here.task_id, here.sample_index, here.is_eval) == (data["id"], 0, False)
        async with AsyncOpenAI(http_client=http_client, max_retries=0) as client:
            reply = await client.chat.completions.create(model="default", messages=data["messages"])
        assert not http_client.is_closed
        return {reply.id: 0.75}
"""


def test_an_sdk_takes_the_workers_client_and_may_close_it(agents, play):
    records = play(f"{agents(SDK)}:Agent", count=2)
    assert [(record.outcome.value, record.reward) for record in records] == [("scored", 0.75)] * 2, records[0].detail


ONCE = """
from pathlib import Path

with open("imports", "a") as file:
    print(os.getpid(), file=file)


class Agent:
    def __init__(self, reward):
        self.reward = reward
        with open("built", "a") as file:
            print(os.getpid(), file=file)

    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        self.reward += 1
        return self.reward
"""


@pytest.mark.parametrize("mode", ["subproc", "python"])
def test_a_workflow_is_built_once_per_worker_and_never_in_the_run(agents, rehearsal, resolve, task, folder, mode):
    import os

    from agentrl_core.config.component import Component

    resolved = resolve(Component(f"{agents(ONCE)}:Agent", {"reward": 0.5}), mode, most=2)
    episodes = rehearsal.play(resolved, [task(number) for number in range(5)])
    built = (folder / "built").read_text().split()
    assert built == (folder / "imports").read_text().split()
    assert len(built) == len(set(built)) <= 2
    assert str(os.getpid()) not in built
    rewards = sorted(episode.record.reward for episode in episodes)
    assert rewards[0] == 1.5
    assert sum(reward == 1.5 for reward in rewards) == len(built)
