"""The recipe in cookbook/smolagents, played by policies that know the way and by some that do not."""

import json
import re
from pathlib import Path

import pytest
from quest import first_message, situations

from agentrl_core.config.component import Component
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task

RECIPE = Path(__file__).parents[3] / "cookbook" / "smolagents"
CALL_ID = r"call_[0-9a-f]{24}"


@pytest.fixture
def play(world):
    registry = load_registry()
    found = registry.load("scorers", "scorer.py:follows_the_clue", base_dir=RECIPE)
    workflow = resolve_workflow(Component("agent.py:build_agent"), registry=registry, base_dir=RECIPE)

    def run(places):
        tasks = []
        for number, (thing, sideways, up) in enumerate(places):
            question = first_message((thing, sideways, up))
            row = {"id": f"t{number}", "messages": [question], "sideways": sideways, "up": up}
            tasks.append(Task(id=f"t{number}", data=row))
        return world.rehearsal.play(workflow, tasks, scorer=found)

    return run


@pytest.fixture
def follows_the_clue(call, final):
    """Make a policy that walks where the clue points, or the other way."""
    opposite = {"right": "left", "left": "right", "up": "down", "down": "up"}

    def make(*, wrongly=False):
        def mind(prompt):
            if "Observation:" in prompt:
                return final("Done.")
            steps, direction = re.findall(r"It is (\d) (right|left|up|down)", prompt)[-1]
            return call("move", dir=opposite[direction] if wrongly else direction, steps=int(steps))

        return mind

    return make


def test_a_perfect_policy_gets_the_full_reward(world, play, follows_the_clue):
    world.mind = follows_the_clue()
    episodes = play(situations()[::17])
    assert {episode.record.reward for episode in episodes} == {1.0}
    assert {len(episode.interactions) for episode in episodes} == {2}  # a move and the final answer


def test_a_policy_that_goes_the_wrong_way_gets_nothing(world, play, follows_the_clue):
    world.mind = follows_the_clue(wrongly=True)
    episodes = play(situations()[:4])
    assert {(episode.record.outcome, episode.record.reward) for episode in episodes} == {(Outcome.SCORED, 0.0)}


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "move", "arguments": {"dir": "right", "steps": 1}}</tool_call>',
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "move"',
        "\nObservation:\nYou went 1 right.",
        "",
    ],
)
def test_whatever_a_policy_says_the_episode_is_scored(world, play, said):
    world.mind = lambda prompt: said
    for episode in play(situations()[:2]):
        assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.0), episode.record.detail


def shape(text):
    return re.sub(r"'steps': \d|\d (up|down|left|right)|'dir': '\w+'|the \w+", "_", text)


def test_the_policy_sees_the_chats_as_the_demonstrations_have_them(world, play, follows_the_clue):
    rows = [json.loads(line) for line in (RECIPE / "demos.jsonl").read_text().splitlines()]
    shown = [re.sub(CALL_ID, "ID", row["messages"][1]["content"]) for row in rows]
    world.mind = follows_the_clue()
    [episode] = play([("door", -2, 1)])
    heard = [re.sub(CALL_ID, "ID", item.messages[1]["content"]) for item in episode.interactions]
    assert [item.messages[0] for item in episode.interactions] == [rows[0]["messages"][0]] * 2
    assert set(map(shape, heard)) <= set(map(shape, shown))
    assert [tool["function"]["name"] for tool in episode.interactions[0].tools] == ["move", "final_answer"]
