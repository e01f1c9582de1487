import asyncio
from types import SimpleNamespace

import pytest

from agentrl_core.api import context as workflow_context
from agentrl_core.api.adapters.called_object import CalledObject, holds_client
from agentrl_core.api.adapters.client_routing import ClientRouting
from agentrl_core.api.scoring import Answer
from agentrl_core.errors import ConfigError, PluginError


def sdk():
    """Classes of an SDK's shape, that tell where a request went."""

    class Client:
        def __init__(self, *, base_url="https://provider.test/", api_key="own", max_retries=2, **_others):
            self.base_url, self.api_key, self.max_retries, self.closed = base_url, api_key, max_retries, False

        def request(self, cast_to, options, *, stream=False):
            return (self.base_url, self.api_key, self.max_retries)

        def close(self):
            self.closed = True

    class AsyncClient(Client):
        async def request(self, cast_to, options, *, stream=False):
            return (self.base_url, self.api_key, self.max_retries)

    routing = ClientRouting(
        async_class=AsyncClient, sync_class=Client, suffix="/v1", paths=("/chat",),
        addresses=lambda: ["https://Provider.test"],
    )  # fmt: skip
    return routing, AsyncClient, Client


@pytest.fixture
def episode():
    http_client = SimpleNamespace(timeout=9.0)
    here = workflow_context.WorkflowContext(
        is_eval=False, record_id="r", task_id="t", sample_index=0, base_url="http://gateway/s", api_key="session",
        http_client=http_client,
    )  # fmt: skip
    token = workflow_context.enter(here)
    yield here
    workflow_context._current.reset(token)


CHAT = SimpleNamespace(url="/chat/completions")
HERE = ("http://gateway/s/v1", "session", 0)


def ask(client, options=CHAT):
    return asyncio.run(client.request(dict, options))


@pytest.mark.usefixtures("episode")
def test_only_the_providers_own_clients_are_redirected_and_only_inside():
    routing, client_class, _ = sdk()
    own, other = client_class(), client_class(base_url="http://judge.test")
    assert ask(own) == ("https://provider.test/", "own", 2)
    with routing.routed():
        assert ask(own) == HERE
        assert ask(other) == ("http://judge.test", "own", 2)
        assert ask(own, SimpleNamespace(url="/embeddings")) == ("https://provider.test/", "own", 2)
    with routing.routed(["http://JUDGE.test/"]):
        assert (ask(other), ask(own)) == (HERE, ("https://provider.test/", "own", 2))
    assert ask(own) == ("https://provider.test/", "own", 2)


@pytest.mark.usefixtures("episode")
def test_a_sync_client_is_one_per_episode_and_closed_with_it():
    routing, _, client_class = sdk()
    with routing.routed():
        route = routing._route.get()
        assert [client_class().request(dict, CHAT) for _ in range(2)] == [HERE, HERE]
        [made] = route.blocking
        assert not made.closed
    assert made.closed


@pytest.mark.usefixtures("episode")
def test_a_sync_client_does_not_stop_the_event_loop():
    routing, _, client_class = sdk()

    async def on_the_loop():
        with routing.routed():
            client_class().request(dict, CHAT)

    with pytest.raises(RuntimeError, match="would block all episodes: use AsyncClient there"):
        asyncio.run(on_the_loop())


def test_a_sdk_of_another_shape_is_refused():
    class Renamed:
        pass

    with pytest.raises(PluginError, match="this version has no method `request`"):
        ClientRouting(async_class=Renamed, sync_class=Renamed, suffix="", paths=(), addresses=list)


def routed_object(routing):
    class Routed(CalledObject):
        def route(self, base_urls):
            return routing.routed(base_urls)

    return Routed


@pytest.mark.usefixtures("episode")
@pytest.mark.parametrize("returned", ["a text", 3])
def test_an_object_answers_inside_the_route(returned):
    routing, client_class, _ = sdk()

    class Agent:
        def __init__(self):
            self.client = client_class()
            self.reached = []

        async def answer(self, given):
            self.reached.append((given, await self.client.request(dict, CHAT)))
            return returned

    agent = Agent()
    workflow = routed_object(routing)(agent, method="answer", input_key="question")
    answer = asyncio.run(workflow.run({"question": "why?"}))
    assert answer == (Answer("a text") if returned == "a text" else None)
    asyncio.run(routed_object(routing)(agent, method="answer", whole_row=True).run({"question": "why?"}))
    assert agent.reached == [("why?", HERE), ({"question": "why?"}, HERE)]
    assert holds_client(agent, client_class.__module__.partition(".")[0], {"Client"})
    assert not holds_client(agent, "another_sdk", {"Client"})
    assert not holds_client(object(), "another_sdk", {"Client"})


def test_an_object_with_nothing_to_call_is_refused():
    routing, client_class, _ = sdk()
    with pytest.raises(ConfigError, match="has no callable"):
        routed_object(routing)(client_class())
