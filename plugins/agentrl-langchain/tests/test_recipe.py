"""The recipe in cookbook/langchain, played by policies that know the way and by some that do not."""

import json
import re
from pathlib import Path

import pytest
from quest import MAX_CALLS, first_message, situations

from agentrl_core.types import Outcome

RECIPE = Path(__file__).parents[3] / "cookbook" / "langchain"
AGENT = f"{RECIPE}/agent.py:build_agent"


@pytest.fixture
def found(world):
    return world.registry.load("scorers", f"{RECIPE}/scorer.py:found")


def row(situation):
    _, sideways, up = situation
    return {"messages": [first_message(situation)], "sideways": sideways, "up": up}


def follows_clues(call, *, wrongly=False):
    """Walk where the last clue points, or the other way."""
    opposite = {"right": "left", "left": "right", "up": "down", "down": "up"}

    def mind(prompt):
        if (
            prompt.endswith("Found!</tool_response><|im_end|><|im_start|>assistant\n")
            or prompt.count("<tool_call>") == 3
        ):
            return "Done."
        steps, direction = re.findall(r"It is (\d) (right|left|up|down)", prompt)[-1]
        return call("move", dir=opposite[direction] if wrongly else direction, steps=int(steps))

    return mind


def test_a_perfect_policy_gets_the_full_reward(world, call, found):
    world.mind = follows_clues(call)
    episodes = world.play(AGENT, *map(row, situations()[::5]), scorer=found)
    assert {episode.record.reward for episode in episodes} == {1.0}
    assert max(len(episode.interactions) for episode in episodes) == 3  # two moves and a farewell
    for episode in episodes:
        for earlier, later in zip(episode.interactions, episode.interactions[1:], strict=False):
            assert later.parent == earlier.id


def test_a_policy_that_goes_the_wrong_way_gets_nothing(world, call, found):
    world.mind = follows_clues(call, wrongly=True)
    episodes = world.play(AGENT, *map(row, situations()[:20]), scorer=found)
    assert {episode.record.reward for episode in episodes} == {0.0}
    assert {len(episode.interactions) for episode in episodes} == {MAX_CALLS + 1}


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "move", "arguments": {"dir": "away", "steps": 1}}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {"dir": "up", "steps": "some"}}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "move", "arguments": {"dir": "up", "steps": 1}}</tool_call>' * 2,
        '<tool_call>{"name": "move"',
        "",
    ],
)
def test_whatever_a_policy_says_the_episode_is_scored_in_few_calls(world, found, said):
    world.says(*[said] * 9)
    episodes = world.play(AGENT, *map(row, situations()[:3]), scorer=found)
    for episode in episodes:
        assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.0), episode.record.detail
        assert len(episode.interactions) <= MAX_CALLS + 1
    longest = max(len(entry.request.prompt_ids) + len(entry.ids) for entry in world.engine.log)
    assert longest <= 1024


def test_a_thing_found_by_the_fourth_move_does_not_count(world, call, found):
    far = call("move", dir="up", steps=1)
    world.says(far, far, far, call("move", dir="right", steps=1))
    [episode] = world.play(AGENT, row(("door", 1, -1)), scorer=found)
    assert episode.record.reward == 0.0


def test_the_policy_sees_the_tool_and_the_task_as_the_demonstrations_have_them(world, found):
    demonstration = json.loads((RECIPE / "demos.jsonl").read_text().splitlines()[0])
    question = demonstration["messages"][0]
    situation = next(item for item in situations() if first_message(item) == question)
    world.says("Done.")
    world.play(AGENT, row(situation), scorer=found)
    rendered = world.chat.render([question], demonstration["tools"])
    assert world.prompts == [rendered]
    assert rendered.startswith("<|im_start|>system\nmove(dir, steps)\n<|im_end|>")
