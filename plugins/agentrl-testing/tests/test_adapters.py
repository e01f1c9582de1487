"""The adapter suite passes an adapter that routes by context, and fails the mistakes that adapters make."""

import functools
from types import SimpleNamespace

import attrs
import pytest
from openai import AsyncOpenAI

from agentrl_core import workflow_context
from agentrl_core.plugins.registry import Registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_testing.adapters import AdapterSuite, questions
from agentrl_testing.workflows import Rehearsal


class Crew:
    """An agent of some framework: it runs on a prompt, with a model that was bound when it was built."""

    def __init__(self):
        self.ask = None

    async def run(self, prompt):
        return await self.ask([{"role": "user", "content": prompt}])


@attrs.define
class CrewWorkflow:
    """The adapter: one built agent for all records, each call routed to the record that it is made for."""

    crew: Crew
    retries: int = 0

    async def run(self, data):
        async def ask(messages):
            here = workflow_context.get()
            client = AsyncOpenAI(
                base_url=here.base_url, api_key=here.api_key, http_client=here.http_client, max_retries=self.retries
            )
            return await client.chat.completions.create(model="gpt-5", messages=messages)

        self.crew.ask = ask
        await self.crew.run(data["messages"][-1]["content"])


def registry_of(adapter):
    def adapt_agent(agent, options, factory, base_dir):
        return adapter(agent, **options) if isinstance(agent, Crew) else None

    return Registry((), SimpleNamespace(adapt_agent=adapt_agent))


class TestCrew(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return Crew

    @pytest.fixture
    def registry(self):
        return registry_of(CrewWorkflow)


class Bound(CrewWorkflow):
    """Binds the agent to the first record that it serves."""

    async def run(self, data):
        here = workflow_context.get()
        if self.crew.ask is None:
            client = AsyncOpenAI(base_url=here.base_url, api_key=here.api_key, http_client=here.http_client)
            self.crew.ask = functools.partial(self._ask, client)
        await self.crew.run(data["messages"][-1]["content"])

    async def _ask(self, client, messages):
        return await client.chat.completions.create(model="gpt-5", messages=messages)


class Remembering(CrewWorkflow):
    """Lets a conversation grow from record to record."""

    seen = ""

    async def run(self, data):
        self.seen += data["messages"][-1]["content"]
        await super().run({"messages": [{"role": "user", "content": self.seen}]})


@pytest.fixture
def rehearsal(tmp_path):
    rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: "The answer is 4.")
    yield rehearsal
    rehearsal.close()


@pytest.mark.parametrize(
    ("adapter", "broken"),
    [
        (Bound, "test_concurrent_records_reach_each_their_own_session"),
        (Remembering, "test_records_leave_nothing_behind_for_later_ones"),
        (functools.partial(CrewWorkflow, retries=1), "test_a_call_that_fails_is_not_tried_again"),
    ],
)
def test_a_mistake_is_noticed(adapter, broken, rehearsal, tmp_path):
    adapted = resolve_workflow(Crew(), registry=registry_of(adapter), base_dir=tmp_path)
    with pytest.raises(AssertionError):
        getattr(AdapterSuite(), broken)(rehearsal, adapted, questions())
