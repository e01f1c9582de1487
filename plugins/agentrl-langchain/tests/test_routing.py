import asyncio
import threading

import langsmith.utils
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks.manager import CallbackManager
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers import LangChainTracer
from langgraph.graph import END, START, MessagesState, StateGraph

from agentrl_core.errors import PluginError
from agentrl_core.types import Outcome
from agentrl_langchain import routing
from agentrl_langchain.policy import PolicyChatModel


class Provider(BaseChatModel):
    """A provider's model that must not be asked inside an episode."""

    asked: list = []  # noqa: RUF012  # pydantic copies it for every object

    @property
    def _llm_type(self):
        return "provider"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self.asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessageChunk("the provider"))])

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        self.asked.append(messages)
        yield ChatGenerationChunk(message=AIMessageChunk("the provider"))


class OwnStream(Provider):
    """A provider that goes past LangChain's own `stream` and `astream`."""

    def stream(self, asked, config=None, **kwargs):
        yield AIMessageChunk("the provider")

    async def astream(self, asked, config=None, **kwargs):
        yield AIMessageChunk("the provider")


class Greeting(Provider):
    """A user's own addition to a model."""

    async def ainvoke(self, asked, config=None, **kwargs):
        return await super().ainvoke([HumanMessage("Good morning."), *asked], config, **kwargs)


def text_of(message):
    return str(message.text)


async def joined(chunks):
    return "".join([text_of(chunk) async for chunk in chunks])


async def from_events(model, asked):
    return "".join(
        [
            text_of(event["data"]["chunk"])
            async for event in model.astream_events(asked, version="v2")
            if event["event"] == "on_chat_model_stream"
        ]
    )


async def from_v3(model, asked):
    stream = await model.astream_events(asked, version="v3")
    return text_of(await stream.output)


async def first_text(awaitable):
    return (await awaitable).generations[0][0].text


ASYNC_WAYS = {
    "ainvoke": lambda model, asked: joined(async_list(model.ainvoke(asked))),
    "abatch": lambda model, asked: joined(async_list(model.abatch([asked]))),
    "astream": lambda model, asked: joined(model.astream(asked)),
    "agenerate": lambda model, asked: first_text(model.agenerate([asked])),
    "astream_events v2": from_events,
    "astream_events v3": from_v3,
}
SYNC_WAYS = {
    "invoke": lambda model, asked: text_of(model.invoke(asked)),
    "batch": lambda model, asked: text_of(model.batch([asked])[0]),
    "stream": lambda model, asked: "".join(text_of(chunk) for chunk in model.stream(asked)),
    "generate": lambda model, asked: model.generate([asked]).generations[0][0].text,
    "stream_events v3": lambda model, asked: text_of(model.stream_events(asked, version="v3").output),
}


async def async_list(awaitable):
    found = await awaitable
    for item in found if isinstance(found, list) else [found]:
        yield item


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def in_episode(world, ask):
    """Run `node(messages)`, async or sync, as an agent of one node; its value and the episode."""

    def run(node, **options):
        values = []

        async def on_loop(state):
            values.append(await node(state["messages"]))

        def on_thread(state):
            values.append(node(state["messages"]))

        [episode] = world.play(
            RunnableLambda(on_loop if asyncio.iscoroutinefunction(node) else on_thread), ask("hi"), **options
        )
        return (values or [None])[0], episode

    return run


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")  # of `version="v3"` itself
@pytest.mark.parametrize("way", ASYNC_WAYS)
def test_every_way_of_awaiting_a_model_leads_to_the_policy(world, provider, in_episode, way):
    world.says("the policy")

    async def node(messages):
        return await ASYNC_WAYS[way](provider, [HumanMessage(messages[0]["content"])])

    assert in_episode(node)[0] == "the policy"
    assert provider.asked == []


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")  # of `version="v3"` itself
@pytest.mark.parametrize("way", SYNC_WAYS)
def test_every_way_of_calling_a_model_from_a_thread_leads_to_the_policy(world, provider, in_episode, way):
    world.says("the policy")
    value, episode = in_episode(lambda messages: SYNC_WAYS[way](provider, [HumanMessage(messages[0]["content"])]))
    assert (value, episode.record.outcome) == ("the policy", Outcome.SCORED)
    assert provider.asked == []


def test_a_class_that_overrides_an_entrance_is_redirected_too(world, in_episode):
    world.says("the policy")

    async def node(messages):
        return await joined(OwnStream().astream(messages))

    assert in_episode(node)[0] == "the policy"
    assert in_episode(lambda messages: SYNC_WAYS["stream"](OwnStream(), messages))[0] == "the policy"
    assert asyncio.run(joined(OwnStream().astream("hi"))) == "the provider"


def test_what_a_users_class_adds_to_a_call_stays(world, in_episode):
    world.says("the policy")

    async def node(messages):
        return await Greeting().ainvoke([HumanMessage(messages[0]["content"])])

    _, episode = in_episode(node)
    assert [message["content"] for message in episode.interactions[0].messages] == ["Good morning.", "hi"]


def test_outside_an_episode_a_model_answers_itself(world, provider, in_episode):
    world.says("the policy")

    async def node(messages):
        return text_of(await provider.ainvoke("hi"))

    assert in_episode(node)[0] == "the policy"
    assert text_of(provider.invoke("hi")) == "the provider"
    assert text_of(asyncio.run(provider.ainvoke("hi"))) == "the provider"
    assert SYNC_WAYS["stream"](provider, "hi") == "the provider"
    assert asyncio.run(joined(provider.astream("hi"))) == "the provider"


def test_the_route_ends_with_its_block_and_needs_an_episode(world, provider):
    answers = []
    world.says("the policy")

    async def run(data):
        with routing.route_to_policy():
            answers.append(text_of(await provider.ainvoke("hi")))
        answers.append(text_of(await provider.ainvoke("hi")))
        return 0.5

    [episode] = world.play(run, {"messages": []})
    assert answers == ["the policy", "the provider"]
    assert episode.record.reward == 0.5
    with pytest.raises(LookupError, match="outside an episode"), routing.route_to_policy():
        pass


@pytest.mark.parametrize("is_async", [True, False])
def test_many_records_on_one_agent_each_find_their_own_session(world, model, ask, is_async):
    world.mind = lambda prompt: "You said " + prompt.split("user\n")[1].split("<|im_end|>")[0]
    everyone = threading.Barrier(2, timeout=10)

    async def async_node(state: MessagesState):
        await asyncio.sleep(0)
        return {"messages": [await model.ainvoke(state["messages"])]}

    def sync_node(state: MessagesState):
        everyone.wait()  # at least two are in their nodes at the same time
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("first", async_node if is_async else sync_node)
    graph.add_node("second", async_node if is_async else sync_node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    names = [f"name {number}" for number in range(40)]
    episodes = world.play(graph.compile(), *map(ask, names))
    for name, episode in zip(names, episodes, strict=True):
        first, second = episode.interactions
        assert first.messages == ({"role": "user", "content": name},)
        assert first.output["content"] == second.output["content"] == f"You said {name}"
        assert (first.parent, second.parent) == (None, first.id)


@pytest.mark.parametrize("way", sorted(SYNC_WAYS.keys() - {"batch"}))
@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")  # of `version="v3"` itself
def test_a_synchronous_call_on_the_event_loop_is_refused(world, model, in_episode, way):
    world.says("never said")

    async def node(messages):
        return SYNC_WAYS[way](model, [HumanMessage("hi")])

    _, episode = in_episode(node)
    assert episode.record.reason == "RuntimeError"
    assert "await `ainvoke` or `astream` there" in episode.record.detail
    assert world.engine.log == []


def test_a_graph_that_is_invoked_synchronously_in_async_code_comes_to_its_end(world, model, in_episode):
    """The event loop stands still meanwhile, so nothing may wait for it."""
    world.says("the policy")
    graph = StateGraph(MessagesState)
    graph.add_node("only", lambda state: {"messages": [model.batch([state["messages"]])[0]]})
    graph.add_edge(START, "only")
    inner = graph.compile()

    async def node(messages):
        await asyncio.sleep(0)
        return model.batch([[("user", "a")], [("user", "b")]])  # two threads, and the loop waits for them

    replies, _ = in_episode(node)
    assert [text_of(reply) for reply in replies] == ["the policy"] * 2
    value, _ = in_episode(lambda messages: inner.invoke({"messages": messages}))
    assert text_of(value["messages"][-1]) == "the policy"


def test_a_thread_may_have_an_event_loop_of_its_own(world, model, in_episode):
    world.says("the policy")
    value, _ = in_episode(lambda messages: text_of(asyncio.run(model.ainvoke(messages))))
    assert value == "the policy"


def test_a_cache_gives_no_record_the_reply_of_another(world, model, in_episode):
    world.says("the policy")
    set_llm_cache(InMemoryCache())
    try:
        episodes = [in_episode(model.invoke)[1] for _ in range(2)]
    finally:
        set_llm_cache(None)
    assert [len(episode.interactions) for episode in episodes] == [1, 1]


@pytest.fixture
def langsmith_on(monkeypatch):
    """LangSmith's tracing, switched on as users do; it answers nothing here."""
    for name, value in {"TRACING": "true", "ENDPOINT": "http://127.0.0.1:9", "API_KEY": "k"}.items():
        monkeypatch.setenv(f"LANGSMITH_{name}", value)
    langsmith.utils.get_env_var.cache_clear()
    yield
    monkeypatch.undo()
    langsmith.utils.get_env_var.cache_clear()


def traces():
    manager = CallbackManager.configure()
    return any(isinstance(handler, LangChainTracer) for handler in manager.handlers)


@pytest.mark.usefixtures("langsmith_on")
def test_nothing_of_an_episode_is_traced_by_langsmith(world, model, in_episode):
    world.says("the policy")

    async def node(messages):
        await model.ainvoke(messages)
        return traces(), await asyncio.to_thread(traces)

    assert in_episode(node)[0] == (False, False)
    assert langsmith.utils.tracing_is_enabled()


def test_installing_again_changes_nothing():
    routing.install()
    before = {name: vars(BaseChatModel)[name] for name in routing.ENTRANCES}
    routing.install()
    assert before == {name: vars(BaseChatModel)[name] for name in routing.ENTRANCES}
    assert not any(name in vars(PolicyChatModel) for name in routing.ENTRANCES)


def test_a_langchain_with_other_entrances_is_refused_by_version(monkeypatch):
    monkeypatch.setattr(routing, "ENTRANCES", (*routing.ENTRANCES, "answer"))
    with pytest.raises(PluginError, match=r"of langchain-core 1\.\S+, which has no BaseChatModel\.answer"):
        routing.install()
