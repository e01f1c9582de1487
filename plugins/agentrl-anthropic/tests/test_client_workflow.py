import anthropic
import pytest

from agentrl_core.types import Outcome
from agentrl_testing.adapters import AdapterSuite


class Assistant:
    """An agent as people write it with the bare SDK."""

    def __init__(self):
        self.client = anthropic.AsyncAnthropic()

    async def __call__(self, messages):
        reply = await self.client.messages.create(model="claude-haiku-4-5", max_tokens=200, messages=messages)
        return reply.content[0].text


class BlockingAssistant:
    def __init__(self):
        self.client = anthropic.Anthropic()

    def __call__(self, messages):
        return self.client.messages.create(model="claude-haiku-4-5", max_tokens=200, messages=messages).content[0].text


class TestAsyncClient(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return Assistant


class TestBlockingClient(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return BlockingAssistant


AGENT_FILE = """
import anthropic

client = anthropic.AsyncAnthropic()

class Chatty:
    def __init__(self, greeting="hello"):
        self.client = client
        self.greeting = greeting

    async def ask(self, question):
        messages = [{"role": "user", "content": f"{self.greeting}, {question}"}]
        await client.messages.create(model="claude-haiku-4-5", max_tokens=99, messages=messages)
        return "six"
"""


def test_a_config_names_the_class_its_options_and_the_method(world, tmp_path):
    (tmp_path / "chatty_claude.py").write_text(AGENT_FILE)
    world.says("hi")
    options = {"greeting": "dear", "method": "ask", "input_key": "question"}
    judged = []

    def scorer(request):
        judged.append(request.answer)
        return 1.0

    [episode] = world.run(f"{tmp_path}/chatty_claude.py:Chatty", {"question": "who?"}, options=options, scorer=scorer)
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert episode.interactions[0].messages[0]["content"] == "dear, who?"
    assert judged == ["six"]
