"""Samplers in AgentRL's style: each episode has its own, which asks the policy and scores what it did."""

from pathlib import Path

import pytest

from agentrl_core import AsyncSampler
from agentrl_core.errors import ConfigError
from agentrl_core.rollout.ready_made.samplers import view
from agentrl_core.types import Outcome

ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}


class MathSampler(AsyncSampler):
    """As AgentRL's own for mathematics."""

    async def run(self, task):
        messages = [
            {"role": "system", "content": self.config.system if "system" in self.config else "Solve it."},
            {"role": "user", "content": "Answer:\n" + task.problem},
        ]
        response = await self.create_chat_completions(messages=messages, temperature=0.7, repeat_penalty=1.2)
        self.record.meta_infos["pred_ans"] = response.choices[0].message.content
        messages.append(response.choices[0].message.model_dump())

    async def evaluate_record(self, record) -> float:
        return 1.0 if record.meta_infos["pred_ans"] == record.task.answer else 0.0


RECIPE = Path(__file__).parents[3] / "cookbook" / "sampler"

DATA = {"problem": "2+2?", "answer": "4"}


def test_it_runs_and_scores_each_episode(play, engine):
    engine.replies = ["4", "5"]
    right, wrong = play(MathSampler, DATA), play(MathSampler, DATA)
    assert [episode.record.reward for episode in (right, wrong)] == [1.0, 0.0]
    (call,) = right.interactions
    assert call.messages[1]["content"] == "Answer:\n2+2?"
    assert call.requested == {"temperature": 0.7, "repetition_penalty": 1.2}


def test_options_are_its_config(play, engine):
    (call,) = play(MathSampler, DATA, options={"system": "Be brief."}).interactions
    assert call.messages[0]["content"] == "Be brief."


def test_each_episode_has_an_instance_of_its_own(play):
    class Counting(MathSampler):
        made = 0

        def __init__(self, **config):
            super().__init__(**config)
            type(self).made += 1
            self.history = []

        async def run(self, task):
            self.history.append(task.id)
            task.problem += "!"
            await super().run(task)

        async def evaluate_record(self, record):
            return len(self.history)

    assert [play(Counting, DATA).record.reward for _ in range(2)] == [1.0, 1.0]
    assert Counting.made == 4  # one to look at for each of the two runs, and one for each episode
    sampler = Counting()
    assert [play(sampler, DATA).record.reward for _ in range(2)] == [1.0, 2.0]  # copies share its list
    assert Counting.made == 5


def test_run_may_leave_out_the_task_and_evaluation_may_be_the_scorers(play, engine):
    class Plain(AsyncSampler):
        async def run(self):
            await self.create_chat_completions([{"role": "user", "content": self.task["problem"]}])
            assert (self.split, self.record.task) == ("valid", self.task)

    engine.replies = ["<answer>4</answer>"]
    episode = play(Plain, DATA, scorer=lambda answer, _: float(answer == "4"), answer="4", is_eval=True)
    assert episode.record.reward == 1.0


def test_tool_calls_are_read_as_of_the_sdk(play, engine):
    class Calling(AsyncSampler):
        async def run(self, task):
            messages = [{"role": "user", "content": task.problem}]
            response = await self.create_chat_completions(messages, tools=[ADD])
            message = response.choices[0].message
            (call,) = message.tool_calls
            assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
            assert (message.content, response.choices[0].finish_reason) == (None, "tool_calls")
            messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
            second = await self.create_chat_completions(messages, tools=[ADD])
            assert second.choices[0].message.tool_calls is None
            assert second.usage.completion_tokens == 2
            assert [item.response.id for item in self.record.traj] == [response.id, second.id]

        async def evaluate_record(self, record):
            return len(record.traj)

    engine.replies = ['<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "3"]
    episode = play(Calling, DATA)
    assert episode.record.reward == 2.0, episode.record.detail
    first, second = episode.interactions
    assert second.parent == first.id


def test_it_is_entered_and_left_with_each_episode(play):
    events = []

    class Opening(MathSampler):
        async def __aenter__(self):
            events.append("open")
            return self

        async def __aexit__(self, *_):
            events.append("close")

        async def evaluate_record(self, record):
            raise ValueError("no score")

    record = play(Opening, DATA).record
    assert (events, record.outcome, record.reason) == (["open", "close"], Outcome.FAILED, "ValueError")


def test_a_refused_call_is_an_error_with_its_reason(play):
    class Wrong(AsyncSampler):
        async def run(self, task):
            await self.create_chat_completions([])

    record = play(Wrong, DATA).record
    assert record.detail.startswith("RequestError: messages")


def test_a_sampler_without_run_or_with_another_signature_is_refused(play):
    class Nothing(AsyncSampler):
        pass

    class Demanding(AsyncSampler):
        async def run(self, task, tools):
            """Wants more than there is."""

    for sampler in (Nothing, Demanding):
        with pytest.raises(ConfigError, match=r"expected `async def run\(self, task\)`"):
            play(sampler, DATA)


def test_the_recipes_sampler_plays_by_its_rules(play, engine):
    row = {"sideways": -2, "up": 1, "messages": [{"role": "user", "content": "Find it."}]}
    left, up, down = (
        f'<tool_call>\n{{"name": "move", "arguments": {{"dir": "{way}", "steps": {steps}}}}}\n</tool_call>'
        for way, steps in (("left", 2), ("up", 1), ("down", 1))
    )
    for moves, reward in (([left, up], 1.0), ([left, down, down], 0.5), ([up, up, up], 0.0), (["Done."], 0.0)):
        engine.replies = list(moves)
        episode = play(f"{RECIPE}/sampler.py:QuestSampler", row, options={"partial_reward": 0.5})
        assert (episode.record.reward, len(episode.interactions)) == (reward, len(moves)), episode.record.detail


def test_a_view_reads_like_an_object_and_is_json():
    reply = view({"choices": [{"message": {"content": "a", "n": None}}]})
    message = reply.choices[0].message
    assert (message.content, message["content"], message.tool_calls) == ("a", "a", None)
    assert message.model_dump(exclude_none=True) == {"content": "a"}
    assert type(reply.model_dump()["choices"][0]) is dict
    message.content = "b"
    assert message["content"] == "b"
    with pytest.raises(AttributeError, match="there is no field 'contents'; the fields are: content, n"):
        _ = message.contents
