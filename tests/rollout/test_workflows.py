import asyncio
import functools
import pickle
import sys
from types import SimpleNamespace

import attrs
import pytest

from agentrl_core import AgentWorkflow, RunConfig
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.plugins.registry import Registry
from agentrl_core.rollout.workflows import resolve_workflow, with_options

OFFERED = {"base_url": "http://gateway/s/1", "api_key": "k", "http_client": None, "record_id": "r", "is_eval": False}


class Agent:
    """A workflow class."""

    built = 0

    def __init__(self, *, max_turns: int = 2):
        type(self).built += 1
        self.max_turns, self.episodes = max_turns, 0

    async def run(self, data, *, record_id):
        self.episodes += 1
        return self.max_turns, self.episodes, data["id"], record_id


async def agent_function(data, *, base_url, bonus: float = 0.0):
    return base_url, bonus


def sync_function(data):
    return data["id"]


class FrameworkAgent:
    """What a framework builds: it runs on a prompt."""

    def run(self, prompt):
        return prompt


class Opaque:
    """Nothing that runs."""


def make_framework_agent(*, model="default"):
    agent = FrameworkAgent()
    agent.model = model
    return agent


@attrs.define
class Adapted:
    agent: object
    options: dict

    async def run(self, data):
        return self.agent, self.options


@pytest.fixture
def asked():
    return []


@pytest.fixture
def resolve(tmp_path, asked):
    """Resolve with no package, and an adapter of `FrameworkAgent`; then run one episode."""

    def adapt_agent(agent, options, factory, base_dir):
        asked.append(agent)
        return Adapted(agent, dict(options)) if isinstance(agent, FrameworkAgent) else None

    registry = Registry((), SimpleNamespace(adapt_agent=adapt_agent))
    return functools.partial(resolve_workflow, registry=registry, base_dir=tmp_path, where="config.yaml:4: workflow")


def run(workflow):
    return asyncio.run(workflow.call({"id": "t"}, OFFERED))


@pytest.fixture
def module(tmp_path):
    """A user's module beside the config file."""
    (tmp_path / "my_module.py").write_text(
        "class MyAgent:\n"
        "    def __init__(self, bonus: float = 0.0): self.bonus = bonus\n"
        "    async def run(self, data, **extra_kwargs): return self.bonus + len(extra_kwargs)\n"
        "built = MyAgent(10.0)\n"
    )
    yield
    sys.modules.pop("my_module", None)


def test_an_adapter_gets_the_factory_of_the_agent(tmp_path):
    got = []

    def adapt_agent(agent, options, factory, base_dir):
        got.append((agent, factory))
        return Adapted(agent, dict(options))

    def build(*, size: int = 1):
        return [size]

    registry = Registry((), SimpleNamespace(adapt_agent=adapt_agent))
    resolve_workflow(build, registry=registry, base_dir=tmp_path)
    resolve_workflow([2], registry=registry, base_dir=tmp_path)
    (made, factory), (given, no_factory) = got
    assert made == factory() == [1]
    assert factory() is not factory()
    assert (given, no_factory) == ([2], None)


def test_a_class_is_built_once_for_all_episodes(resolve):
    Agent.built = 0
    workflow = resolve(Agent)
    assert [run(workflow)[:2], run(workflow)[:2]] == [(2, 1), (2, 2)]
    assert Agent.built == 1
    assert workflow.name == f"{Agent.__module__}.Agent"


def test_an_instance_keeps_its_state(resolve):
    agent = Agent(max_turns=9)
    agent.episodes = 5
    assert run(resolve(agent)) == (9, 6, "t", "r")


@pytest.mark.parametrize(("function", "result"), [(agent_function, ("http://gateway/s/1", 0.0)), (sync_function, "t")])
def test_a_plain_function_is_a_workflow(resolve, function, result):
    assert run(resolve(function)) == result


@pytest.mark.parametrize("ref", ["my_module.MyAgent", "my_module:MyAgent", "my_module.py:MyAgent"])
def test_it_is_found_by_path(resolve, module, ref):
    workflow = resolve(ref)
    assert run(workflow) == 5.0
    assert "MyAgent" in workflow.name
    assert run(resolve(Component(ref, {"bonus": 1.0}))) == 6.0


def test_an_object_is_found_by_path(resolve, module):
    assert run(resolve("my_module:built")) == 15.0
    with pytest.raises(ConfigError, match=r"config.yaml:4: workflow.bonus: .* takes no options"):
        resolve(Component("my_module:built", {"bonus": 1.0}))


def test_options_that_the_class_does_not_know_are_refused(resolve, module):
    with pytest.raises(ConfigError, match=r"config.yaml:4: workflow.bonuss: unknown option .*bonus"):
        resolve(Component("my_module.MyAgent", {"bonuss": 1.0}))


def test_a_functions_options_are_its_keywords(resolve, tmp_path):
    (tmp_path / "agents.py").write_text(
        "async def agent(data, *, base_url, bonus: float = 0.0): return base_url, bonus\n"
    )
    assert run(resolve(Component("agents.py:agent", {"bonus": 2}))) == ("http://gateway/s/1", 2.0)
    with pytest.raises(ConfigError, match="bonu"):
        resolve(Component("agents.py:agent", {"bonu": 2}))
    with pytest.raises(ConfigError, match="expected a number"):
        resolve(Component("agents.py:agent", {"bonus": "much"}))


def test_a_framework_object_goes_to_the_adapter_though_it_has_a_run_of_its_own(resolve):
    agent = FrameworkAgent()
    assert run(resolve(agent)) == (agent, {})


def test_a_factory_is_called_once_and_what_it_makes_is_adapted(resolve, tmp_path, asked):
    workflow = resolve(make_framework_agent)
    first, second = run(workflow), run(workflow)
    assert first == second
    assert first[0].model == "default"
    assert len(asked) == 1


def test_options_are_shared_out_between_factory_and_adapter(resolve, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "the_framework", SimpleNamespace(make=make_framework_agent))
    (tmp_path / "factory.py").write_text("from the_framework import make\n")
    agent, options = run(resolve(Component("factory.py:make", {"model": "mine", "recursion_limit": 9})))
    assert (agent.model, options) == ("mine", {"recursion_limit": 9})


def test_a_class_of_agents_is_a_factory(resolve):
    assert isinstance(run(resolve(FrameworkAgent))[0], FrameworkAgent)


def test_a_factory_may_make_a_workflow(resolve):
    assert run(resolve(lambda: Agent(max_turns=3)))[0] == 3


def test_what_takes_data_is_never_offered_to_an_adapter(resolve, asked):
    for workflow in (Agent, Agent(), agent_function, sync_function):
        resolve(workflow)
    assert asked == []


@pytest.mark.parametrize("found", [Opaque(), Opaque, functools.partial(Opaque), 3, None])
def test_what_does_not_run_is_refused_with_its_type_and_what_a_workflow_is(resolve, found):
    with pytest.raises(PluginError, match=r"config.yaml:4: workflow: .* of type .*async def run\(self, data") as caught:
        resolve(found)
    assert "agentrl-langchain" in str(caught.value)


def test_an_agent_of_a_known_framework_names_the_package_to_install(resolve):
    agent = type("CompiledGraph", (), {"__module__": "langgraph.graph.state"})()
    with pytest.raises(PluginError, match=r"langgraph.graph.state.CompiledGraph.*pip install agentrl-langchain to"):
        resolve(agent)


class CallableAgent:
    """A workflow without `run`."""

    def __init__(self, *, bonus: float = 0.0):
        self.bonus, self.episodes = bonus, 0

    async def __call__(self, data, *, record_id):
        self.episodes += 1
        return self.bonus, self.episodes, record_id


class Outer:
    class Inner(Agent):
        """Named by the path through its outer class."""


async def demanding(data, *, base_url, rate: float, **_):
    return rate


class OnlyData:
    async def run(self, data):
        return data["id"]


class SyncAgent:
    def run(self, data, **extra_kwargs):
        return sorted(extra_kwargs)


def test_a_callable_object_is_a_workflow_built_once(resolve, asked):
    workflow = resolve(CallableAgent, options={"bonus": 1})
    assert [run(workflow), run(workflow)] == [(1.0, 1, "r"), (1.0, 2, "r")]
    assert run(resolve(CallableAgent(bonus=2.0))) == (2.0, 1, "r")
    assert asked == []


def test_a_callable_object_of_a_framework_goes_to_the_adapter_first(resolve):
    class Chain(FrameworkAgent):
        def __call__(self, prompt):
            return prompt

    chain = Chain()
    assert run(resolve(chain)) == (chain, {})


def test_a_partial_is_a_workflow_or_a_factory(resolve):
    assert run(resolve(functools.partial(demanding, rate=0.5))) == 0.5
    assert run(resolve(functools.partial(sync_function))) == "t"
    assert run(resolve(functools.partial(Agent, max_turns=7)))[0] == 7


def test_a_bound_method_keeps_its_object(resolve):
    agent = Agent()
    workflow = resolve(agent.run)
    assert [run(workflow)[1], run(workflow)[1]] == [1, 2]


def test_a_nested_class_is_found_by_path(resolve, tmp_path):
    (tmp_path / "nest.py").write_text(
        "class Outer:\n    class Inner:\n        async def run(self, data): return data['id']\n"
    )
    for ref in ("nest:Outer.Inner", "nest.Outer.Inner", "nest.py:Outer.Inner"):
        assert run(resolve(ref)) == "t"
    assert run(resolve(Outer.Inner))[0] == 2
    sys.modules.pop("nest")


def test_run_without_keywords_and_sync_run_are_called_alike(resolve):
    assert run(resolve(OnlyData)) == "t"
    assert run(resolve(SyncAgent)) == sorted(OFFERED)


def test_options_come_beside_the_workflow_as_workflow_kwargs(resolve, module):
    assert run(resolve(Agent, options={"max_turns": 5}))[0] == 5
    assert run(resolve("my_module.MyAgent", options={"bonus": 2.0})) == 7.0
    assert run(resolve(Component("my_module.MyAgent", {"bonus": 1.0}), options={"bonus": 3.0})) == 8.0
    assert run(resolve(demanding, options={"rate": 2})) == 2.0
    with pytest.raises(ConfigError, match=r"workflow.max_turnss: unknown option .*max_turns"):
        resolve(Agent, options={"max_turnss": 5})
    with pytest.raises(ConfigError, match=r"workflow.max_turns: .* takes no options"):
        resolve(Agent(), options={"max_turns": 5})


def test_options_and_their_workflow_make_one_object_for_another_process(resolve):
    for workflow, options, first in ((Agent, {"max_turns": 5}, 5), (CallableAgent, {"bonus": 1.0}, 1.0)):
        sent = pickle.loads(pickle.dumps(with_options(workflow, options)))
        assert run(resolve(sent))[0] == first
    assert run(resolve(with_options(demanding, {"rate": 2.0}))) == 2.0
    assert with_options("a.B", {"c": 1}) == with_options(Component("a.B", {"c": 0}), {"c": 1})
    assert with_options(Agent, {}) is Agent
    with pytest.raises(ConfigError, match="unknown option"):
        with_options(Agent, {"max_turnss": 5})
    with pytest.raises(ConfigError, match="takes no options"):
        with_options(Agent(), {"max_turns": 5})


def test_the_base_class_of_agents_only_types_them(resolve, recwarn):
    class Typed(AgentWorkflow):
        async def run(self, data, **extra_kwargs):
            return extra_kwargs["record_id"]

    assert run(resolve(Typed)) == "r"
    assert not recwarn.list


def test_the_defaults_of_the_contract():
    agent = RunConfig().rollout.agent
    assert (agent.mode, agent.turn_discount, agent.export_style, agent.subproc_max_workers) == (
        "inline", 1.0, "individual", 4,
    )  # fmt: skip


def test_a_wrong_signature_is_refused_before_anything_starts(resolve):
    class NoData:
        async def run(self):
            return 1.0

    class Demanding:
        async def run(self, data, tray):
            return 1.0

    async def nothing():
        return 1.0

    for workflow in (NoData, NoData(), nothing):
        with pytest.raises(ConfigError, match=r"config.yaml:4: workflow: .* no parameter for the task"):
            resolve(workflow)
    with pytest.raises(ConfigError, match="'tray'"):
        resolve(Demanding)


def test_a_class_that_needs_options_is_refused_with_their_names(resolve):
    class Needy:
        def __init__(self, model):
            self.model = model

        async def run(self, data):
            return 1.0

    with pytest.raises(ConfigError, match="needs the option 'model'"):
        resolve(Needy)


@pytest.mark.parametrize("framework", ["camel.agents", "openhands.sdk"])
def test_a_framework_of_another_interpreter_is_told_from_one_that_is_not_installed(resolve, tmp_path, framework):
    file = tmp_path / f"{framework.partition('.')[0]}_agent.py"
    file.write_text(f"import {framework}\n", encoding="utf-8")
    name = framework.partition(".")[0]
    with pytest.raises(PluginError, match=rf"(?s)No module named '{name}.*rollout.agent.python.*agentrl-{name} here"):
        resolve(f"{file}:build")
    (tmp_path / "other_agent.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    with pytest.raises(PluginError, match="nowhere_to_be_found") as caught:
        resolve(f"{tmp_path}/other_agent.py:build")
    assert "rollout.agent.python" not in str(caught.value)


def test_an_unknown_name_is_refused(resolve):
    with pytest.raises(PluginError, match="no workflow named 'math_agent'"):
        resolve("math_agent")
