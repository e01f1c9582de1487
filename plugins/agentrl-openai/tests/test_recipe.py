"""The recipe in cookbook/openai-agents, played by policies that know the way and by some that do not."""

import json
import re
from pathlib import Path

import pytest
from quest import MAX_CALLS, first_message, situations

from agentrl_core.types import Outcome

RECIPE = Path(__file__).parents[3] / "cookbook" / "openai-agents"
AGENT = f"{RECIPE}/agent.py:agent"
OPTIONS = {"context": f"{RECIPE}/agent.py:set_out", "max_turns": MAX_CALLS}


@pytest.fixture
def walk(world):
    """Play the recipe's agent from some situations."""
    found = world.registry.load("scorers", f"{RECIPE}/scorer.py:found")

    def play(situations):
        rows = [{"messages": [first_message(item)], "sideways": item[1], "up": item[2]} for item in situations]
        return world.run(AGENT, *rows, options=OPTIONS, scorer=found)

    return play


@pytest.mark.parametrize("wrongly", [False, True])
def test_a_policy_is_rewarded_where_it_follows_the_clues(world, call, walk, wrongly):
    opposite = {"right": "left", "left": "right", "up": "down", "down": "up"}

    def mind(prompt):
        steps, direction = re.findall(r"It is (\d) (right|left|up|down)", prompt)[-1]
        return call("move", dir=opposite[direction] if wrongly else direction, steps=int(steps))

    world.mind = mind
    episodes = walk(situations()[::12])
    assert {episode.record.reward for episode in episodes} == {0.0 if wrongly else 1.0}
    assert max(len(episode.interactions) for episode in episodes) == (MAX_CALLS if wrongly else 2)
    for episode in episodes:
        for earlier, later in zip(episode.interactions, episode.interactions[1:], strict=False):
            assert later.parent == earlier.id


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "move", "arguments": {"dir": "away", "steps": 1}}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {"dir": "up", "steps": 1}}</tool_call>' * 2,
        '<tool_call>{"name": "move"',
        "",
    ],
)
def test_whatever_a_policy_says_the_episode_is_scored_in_few_calls(world, walk, said):
    world.mind = lambda prompt: said
    for episode in walk(situations()[:2]):
        assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.0), episode.record.detail
        assert len(episode.interactions) <= MAX_CALLS


def test_the_policy_sees_the_tool_and_the_task_as_the_demonstrations_have_them(world, walk):
    demonstration = json.loads((RECIPE.parent / "quickstart" / "demos.jsonl").read_text().splitlines()[0])
    question = demonstration["messages"][0]
    world.says("Done.")
    [episode] = walk([next(item for item in situations() if first_message(item) == question)])
    [shown] = demonstration["tools"]
    [seen] = episode.interactions[0].tools
    assert episode.interactions[0].messages == (question,)
    assert seen["function"]["name"] == shown["function"]["name"]
    assert list(seen["function"]["parameters"]["properties"]) == list(shown["function"]["parameters"]["properties"])
