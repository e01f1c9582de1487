import threading

import openai
import pytest

from agentrl_core.errors import ConfigError
from agentrl_core.types import Outcome
from agentrl_openai.client_workflow import ClientWorkflow
from agentrl_testing.adapters import AdapterSuite


class Assistant:
    """An agent as people write it with the bare SDK."""

    def __init__(self, client=None):
        self.client = client or openai.AsyncOpenAI()

    async def __call__(self, messages):
        reply = await self.client.chat.completions.create(model="gpt-5-mini", messages=messages)
        return reply.choices[0].message.content


class BlockingAssistant:
    def __init__(self, client=None):
        self.client = client or openai.OpenAI()

    def answer(self, messages):
        return self.client.responses.create(model="gpt-5-mini", input=messages).output_text


class CallableBlockingAssistant(BlockingAssistant):
    def __call__(self, messages):
        return self.answer(messages)


class TestAsyncClient(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return Assistant


class TestBlockingClient(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return CallableBlockingAssistant


AGENT_FILE = """
import openai

client = openai.AsyncOpenAI()

class Chatty:
    def __init__(self, greeting="hello"):
        self.client = client
        self.greeting = greeting

    async def ask(self, question):
        messages = [{"role": "user", "content": f"{self.greeting}, {question}"}]
        await client.chat.completions.create(model="gpt-5", messages=messages)
"""


def test_a_config_names_the_class_its_options_and_the_method(world, tmp_path):
    (tmp_path / "chatty_agent.py").write_text(AGENT_FILE)
    world.says("hi")
    options = {"greeting": "dear", "method": "ask", "input_key": "question"}
    [episode] = world.run(f"{tmp_path}/chatty_agent.py:Chatty", {"question": "who?"}, options=options)
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert episode.interactions[0].messages[0]["content"] == "dear, who?"


def test_a_client_with_another_address_is_the_policys_where_the_config_says_so(world, ask):
    world.says("hi")
    local = Assistant(openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", max_retries=0))
    [elsewhere] = world.run(ClientWorkflow(local), ask("hello"))
    assert (elsewhere.record.outcome, elsewhere.record.reason) == (Outcome.FAILED, "APIConnectionError")
    [here] = world.run(ClientWorkflow(local, base_urls=["http://127.0.0.1:9/v1/"]), ask("hello"))
    assert here.record.outcome is Outcome.SCORED, here.record.detail


@pytest.mark.parametrize(("returned", "judged"), [("four", "four"), (4, "hi")])
def test_a_text_that_is_returned_is_the_answer_to_judge(world, ask, returned, judged):
    class Counts(Assistant):
        async def __call__(self, messages):
            await super().__call__(messages)
            return returned

    world.says("hi")
    answers = []
    [episode] = world.run(Counts(), ask("hello"), scorer=lambda request: answers.append(request.answer) or 1.0)
    assert (episode.record.outcome, answers) == (Outcome.SCORED, [judged]), episode.record.detail


def test_blocking_objects_run_side_by_side(world, ask):
    world.says("hi")
    together = threading.Barrier(3, timeout=10)

    class Waits(BlockingAssistant):
        def __call__(self, messages):
            together.wait()
            return self.answer(messages)

    for episode in world.run(Waits(), *[ask("hello")] * 3):
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail


@pytest.mark.parametrize(
    ("method", "message"),
    [(None, "has no callable `__call__`; name the method"), ("anser", "has no callable attribute 'anser'")],
)
def test_an_object_with_nothing_to_call_is_refused(method, message):
    with pytest.raises(ConfigError, match=message):
        ClientWorkflow(BlockingAssistant(), method=method)
