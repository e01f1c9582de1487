"""Episodes with a resources server of NeMo Gym, whose messages `servers.py` has."""

import json

import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import DataError
from agentrl_core.types import Outcome
from agentrl_openenv.dataset import NeMoGymTasks
from agentrl_testing.datasets import DatasetSuite

COUNT = {
    "type": "function",
    "name": "count",
    "description": "Count on.",
    "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}},
    "strict": False,
}


def row(expected):
    asked = [{"role": "user", "content": f"Count to {expected}."}]
    return {"responses_create_params": {"input": asked, "tools": [COUNT]}, "expected": expected}


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in (3, 5)))
    return NeMoGymTasks(path="rows.jsonl", config_dir=tmp_path)


class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self, tasks):
        return tasks


def call(arguments, name="count"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_the_server_verifies_what_the_policy_did_in_its_session(tasks, gym, serve, play):
    component = Component("nemo_gym", {"url": serve(gym.app())})
    said = (call('{"by": "x"}'), call('{"by": 1}', "nothing"), call('{"by": 3}'), "Three.")
    episodes = play(component, tasks(), *said)
    assert [item.record.reward for item in episodes] == [1.0, 0.0], episodes[0].record.detail
    assert sorted(gym.counts.values()) == [3, 3]
    verified = next(body for body in gym.verified if body["expected"] == 3)
    output = verified["response"]["output"]
    results = [item["output"] for item in output if item["type"] == "function_call_output"]
    assert results == ['{"detail": "by: expected an integer"}', '{"error": "unknown tool nothing"}', '{"count": 3}']
    assert output[-1]["content"][0]["text"] == "Three."
    first, *others = episodes[0].interactions
    assert [item.parent for item in others] == [first.id, *(item.id for item in others[:-1])]


@pytest.mark.parametrize(
    ("broken", "problem"),
    [("an error", "answered 500 to /verify: an error"), ("{}", "verified without a reward"), ("?", "without a reward")],
)
def test_a_server_that_cannot_verify_is_lost_and_no_zero(tasks, gym, serve, play, broken, problem):
    gym.broken = broken
    episodes = play(Component("nemo_gym", {"url": serve(gym.app())}), tasks(), "Three.")
    for episode in episodes:
        assert (episode.record.outcome, episode.record.reason) == (Outcome.REJECTED, "environment_lost")
        assert problem in episode.record.detail


def test_no_server_is_told(tasks, play):
    episodes = play(Component("nemo_gym", {"url": "http://127.0.0.1:9"}), tasks(), "Three.")
    assert "NeMo Gym server http://127.0.0.1:9 failed at /seed_session" in episodes[0].record.detail


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"responses_create_params": {"input": []}}'])
def test_a_row_that_is_none_is_told_with_its_line(tmp_path, text):
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row(1))}\n{text}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: expected "):
        NeMoGymTasks(path="rows.jsonl", config_dir=tmp_path)()


@pytest.mark.parametrize("text", [None, ""])
def test_a_file_without_rows_is_told(tmp_path, text):
    if text is not None:
        (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"rows\.jsonl: "):
        NeMoGymTasks(path="rows.jsonl", config_dir=tmp_path)()
