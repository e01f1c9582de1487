"""The recipe in cookbook/pydantic-ai, played by policies that know the way and by some that do not."""

import json
import re
from pathlib import Path

import pytest
from quest import first_message, situations

from agentrl_core.config.component import Component
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task

COOKBOOK = Path(__file__).parents[3] / "cookbook"
OPTIONS = {"deps": "agent.py:set_out", "usage_limits": {"request_limit": 4}}


@pytest.fixture
def play(world):
    registry = load_registry()
    base_dir = COOKBOOK / "pydantic-ai"
    found = registry.load("scorers", "../langchain/scorer.py:found", base_dir=base_dir)
    workflow = resolve_workflow(Component("agent.py:build_agent", OPTIONS), registry=registry, base_dir=base_dir)

    def run(places):
        tasks = []
        for number, (thing, sideways, up) in enumerate(places):
            question = first_message((thing, sideways, up))
            row = {"id": f"t{number}", "messages": [question], "sideways": sideways, "up": up}
            tasks.append(Task(id=f"t{number}", data=row))
        return world.rehearsal.play(workflow, tasks, scorer=found)

    return run


def follows_clues(call, *, wrongly=False):
    """Walk where the last clue points, or the other way."""
    opposite = {"right": "left", "left": "right", "up": "down", "down": "up"}

    def mind(prompt):
        if "Found!" in prompt:
            return "Done."
        steps, direction = re.findall(r"It is (\d) (right|left|up|down)", prompt)[-1]
        return call("move", dir=opposite[direction] if wrongly else direction, steps=int(steps))

    return mind


def test_a_perfect_policy_gets_the_full_reward(world, play, call):
    world.mind = follows_clues(call)
    episodes = play(situations()[::17])
    assert {episode.record.reward for episode in episodes} == {1.0}
    assert max(len(episode.interactions) for episode in episodes) == 3  # two moves and a farewell


def test_a_policy_that_goes_the_wrong_way_gets_nothing(world, play, call):
    world.mind = follows_clues(call, wrongly=True)
    episodes = play(situations()[:4])
    assert {(episode.record.outcome, episode.record.reward) for episode in episodes} == {(Outcome.SCORED, 0.0)}
    assert {len(episode.interactions) for episode in episodes} == {4}


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "move", "arguments": {"dir": "away", "steps": 1}}</tool_call>',
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "move"',
        "",
    ],
)
def test_whatever_a_policy_says_the_episode_is_scored(world, play, said):
    world.says(*[said] * 9)
    for episode in play(situations()[:2]):
        assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.0), episode.record.detail


def test_the_policy_sees_the_chat_as_the_demonstrations_have_it(world, play):
    demonstration = json.loads((COOKBOOK / "langchain/demos.jsonl").read_text().splitlines()[0])
    question = demonstration["messages"][0]
    world.says("Done.")
    [episode] = play([item for item in situations() if first_message(item) == question][:1])
    [interaction] = episode.interactions
    assert interaction.messages == (question,)
    assert [tool["function"]["name"] for tool in interaction.tools] == ["move"]
    assert list(interaction.tools[0]["function"]["parameters"]["properties"]) == ["dir", "steps"]
