import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, wrap_model_call
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agentrl_core.errors import ConfigError
from agentrl_core.types import Outcome
from agentrl_testing.adapters import AdapterSuite


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class TestCreateAgent(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, model):
        return lambda: create_agent(model, tools=[add])


class TestGraph(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, model):
        async def node(state: MessagesState):
            return {"messages": [await model.bind_tools([add]).ainvoke(state["messages"])]}

        return lambda: one_node(node).compile()


class TestChain(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, model):
        prompt = ChatPromptTemplate([("system", "Be brief."), ("placeholder", "{messages}")])
        return lambda: prompt | model | StrOutputParser()


def one_node(node, schema=MessagesState):
    graph = StateGraph(schema)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    return graph


def talk_to(model):
    return lambda state: {"messages": [model.invoke(state["messages"])]}


def test_an_agent_uses_its_tools_until_the_policy_answers(world, model, ask, call):
    world.says("Let me see. " + call("add", a=1, b=2) + call("add", a=3, b=4), "<answer>3 and 7</answer>")
    scored = []
    agent = create_agent(model, tools=[add], system_prompt="You add.")
    [episode] = world.play(agent, ask("1 + 2, 3 + 4?"), scorer=lambda request: scored.append(request) or 0.75)
    assert episode.record.reward == 0.75
    assert scored[0].answer == "3 and 7"
    assert [message["content"] for message in scored[0].messages] == [
        "You add.", "1 + 2, 3 + 4?", "Let me see.", "3", "7", "<answer>3 and 7</answer>",
    ]  # fmt: skip
    assert [item["function"]["name"] for item in episode.interactions[0].tools] == ["add"]


def test_the_agent_sees_a_call_that_cannot_be_read(world, model, ask):
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>'
    world.says(broken, "never said")
    replies = []
    agent = create_agent(model, tools=[add]) | RunnableLambda(lambda state: replies.extend(state["messages"]))
    [episode] = world.play(agent, ask("1 + 2?"))
    assert episode.interactions[0].tool_errors == 1
    assert replies[-1].content == broken


def test_the_agent_hears_of_a_tool_that_does_not_exist(world, model, ask, call):
    world.says(call("subtract", a=1), "Sorry.")
    [episode] = world.play(create_agent(model, tools=[add]), ask("1 - 2?"))
    assert "subtract is not a valid tool" in episode.interactions[1].messages[0]["content"]


def test_middleware_of_the_agent_goes_on_working(world, model, ask, call):
    seen = []

    @wrap_model_call
    async def watch(request, handler):
        response = await handler(request)
        seen.append(response.result[0].id)
        return response

    world.says(*[call("add", a=1, b=2)] * 9)
    limit = ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")
    [episode] = world.play(create_agent(model, tools=[add], middleware=[watch, limit]), ask("1 + 2?"))
    assert [item.id for item in episode.interactions] == seen
    assert len(seen) == 2


AGENT_FILE = """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

def build_agent():
    return create_agent(ChatOpenAI(model="gpt-5", api_key="k"), tools=[])

agent = build_agent()
"""


@pytest.mark.parametrize("name", ["build_agent", "agent"])
def test_a_config_names_an_agent_or_its_factory(world, ask, tmp_path, name):
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)
    world.says("hi")
    [episode] = world.play(f"{tmp_path}/my_agent.py:{name}", ask("hello"), options={"recursion_limit": 3})
    assert (episode.record.outcome, episode.interactions[0].model) == (Outcome.SCORED, "gpt-5")


def test_an_unknown_option_is_refused_with_the_nearest_name(world, tmp_path):
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)
    with pytest.raises(ConfigError, match=r"workflow.recursion_limt: .*did you mean .*recursion_limit"):
        world.play(f"{tmp_path}/my_agent.py:agent", options={"recursion_limt": 3})


def test_a_graph_that_is_not_compiled_is_compiled(world, model, ask):
    world.says("hi")
    [episode] = world.play(one_node(talk_to(model)), ask("hello"))
    assert episode.record.outcome is Outcome.SCORED


def test_a_graph_finds_its_own_fields_in_the_row(world, model):
    class State(MessagesState):
        city: str

    world.says("Rainy.")
    graph = one_node(lambda state: {"messages": [model.invoke(f"Weather in {state['city']}?")]}, State)
    [episode] = world.play(graph.compile(), {"city": "Oslo", "messages": [], "answer": "rain"})
    assert episode.interactions[0].messages[0]["content"] == "Weather in Oslo?"


def test_a_chain_gets_the_fields_that_its_prompt_names(world, model):
    world.says("Rainy.")
    chain = ChatPromptTemplate([("user", "Weather in {city}?")]) | model | StrOutputParser()
    [episode] = world.play(chain, {"city": "Oslo", "messages": [], "answer": "rain"})
    assert episode.interactions[0].messages == ({"role": "user", "content": "Weather in Oslo?"},)


@pytest.mark.parametrize("first", ["model", "bound", "retried", "with a fallback", "chain"])
def test_a_chain_that_begins_with_a_model_gets_the_messages(world, model, ask, first):
    runnable = {
        "model": model,
        "bound": model.bind(stop=["x"]).with_config(tags=["a"]),
        "retried": model.with_retry(),
        "with a fallback": model.with_fallbacks([model]),
        "chain": model | StrOutputParser(),
    }[first]
    world.says("hi")
    [episode] = world.play(runnable, ask("hello"))
    assert episode.interactions[0].messages == ({"role": "user", "content": "hello"},)


def test_a_chain_may_take_one_field_of_the_row(world, model, tmp_path):
    world.says("hi")
    from agentrl_langchain.workflow import LangChainWorkflow

    prompt = ChatPromptTemplate([("user", "{question} Use {facts}.")])
    chain = {"question": RunnablePassthrough(), "facts": RunnableLambda(len)} | prompt | model
    workflow = LangChainWorkflow(chain, input_key="query")
    good, bad = world.play(workflow, {"query": "Why?", "messages": []}, {"messages": []})
    assert good.interactions[0].messages[0]["content"] == "Why? Use 4."
    assert bad.record.reason == "DataError"
    assert "has no 'query', which the workflow's input_key names; it has id, messages" in bad.record.detail


@pytest.mark.parametrize(("limit", "outcome"), [(None, Outcome.SCORED), (4, Outcome.FAILED)])
def test_the_recursion_limit_bounds_an_episode(world, model, ask, call, limit, outcome):
    from agentrl_langchain.workflow import LangChainWorkflow

    world.says(*[call("add", a=1, b=2)] * 5, "Done.")
    workflow = LangChainWorkflow(create_agent(model, tools=[add]), recursion_limit=limit)
    [episode] = world.play(workflow, ask("1 + 2?"))
    assert episode.record.outcome is outcome
    assert episode.record.reason == ("GraphRecursionError" if limit else "")


def test_a_checkpointer_has_a_thread_per_record_and_keeps_none(world, model, ask):
    saver, threads = InMemorySaver(), set()
    world.mind = lambda prompt: threads.update(saver.storage) or "hi"
    episodes = world.play(create_agent(model, tools=[], checkpointer=saver), *[ask("hello")] * 3)
    assert threads == {episode.record.id for episode in episodes}
    assert not saver.storage
    assert not saver.blobs


def test_a_checkpointer_that_cannot_delete_is_no_obstacle(world, model, ask):
    class Archive(InMemorySaver):
        async def adelete_thread(self, thread_id):
            raise NotImplementedError

    world.says("hi")
    [episode] = world.play(create_agent(model, tools=[], checkpointer=Archive()), ask("hello"))
    assert episode.record.outcome is Outcome.SCORED


def test_an_agent_that_raises_fails_with_its_own_error(world, model, ask):
    class TooWarmError(Exception):
        pass

    async def node(state: MessagesState):
        await model.ainvoke(state["messages"])
        raise TooWarmError("38 degrees")

    world.says("hi")
    [episode] = world.play(one_node(node).compile(), ask("hello"))
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "TooWarmError")
    assert "38 degrees" in episode.record.detail
    assert len(episode.interactions) == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_an_episode_that_takes_too_long_is_cancelled(world, model, ask, is_async):
    async def node(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    world.hangs()
    [episode] = world.play(one_node(node if is_async else talk_to(model)).compile(), ask("hello"), timeout_s=0.3)
    assert episode.record.outcome is Outcome.TIMED_OUT
    assert episode.interactions == ()
    assert world.engine.log[0].finish_reason.value == "abort"


def test_rewards_may_be_given_by_response_id(world, model, ask):
    from agentrl_langchain.routing import route_to_policy

    graph = one_node(talk_to(model)).compile()

    async def run(data):
        with route_to_policy():
            state = await graph.ainvoke(data)
        return {state["messages"][-1].response_metadata["id"]: 0.5}

    world.says("hi")
    [episode] = world.play(run, ask("hello"))
    assert episode.record.rewards == {episode.interactions[0].id: 0.5}
